"""Latent attention against DeepSeek-V3's, and against its equation."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnkit.layers import Transformer, TransformerConfig
from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.latent_attention import LatentAttention
from attnkit.position import Rotation
from attnkit.position.rotary import Rotary
from attnkit.registry import ConfigurationError, mixers

B, T, D, H, R, C, V, L = 2, 7, 24, 4, 6, 5, 3, 8
SIZES = {"d_model": D, "num_heads": H, "head_dim": R, "content_dim": C, "value_dim": V, "latent_dim": L}


def draw(module: nn.Module) -> nn.Module:
    for parameter in module.requires_grad_(False).parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


def rotation(start: int, stop: int) -> Rotation:
    return Rotary(head_dim=R, interleaved=True).double().rotation(torch.arange(start, stop)[None])


def tables(start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines in transformers' layout, [1, T, R]."""
    turned = rotation(start, stop)
    return torch.cat([turned.cos[:, 0]] * 2, -1), torch.cat([turned.sin[:, 0]] * 2, -1)


def theirs(query_latent_dim: int | None, bias: bool) -> Any:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    config = DeepseekV3Config(
        hidden_size=D, num_attention_heads=H, num_key_value_heads=H, q_lora_rank=query_latent_dim, kv_lora_rank=L, qk_rope_head_dim=R,
        qk_nope_head_dim=C, v_head_dim=V, attention_bias=bias, rope_interleave=True, attn_implementation="sdpa",
    )  # fmt: skip
    attention = DeepseekV3Attention(config, layer_idx=0)
    for name in ("q_a_layernorm", "kv_a_layernorm"):  # theirs computes in fp32
        if (norm := getattr(attention, name)) is not None:
            setattr(attention, name, nn.RMSNorm(len(norm.weight), eps=1e-6))
    return draw(attention)


def swapped(x: Tensor) -> Tensor:
    """Their heads have the rotated channels last."""
    return x.unflatten(0, (H, C + R)).roll(R, 1).flatten(0, 1)


def copied(attention: Any) -> LatentAttention:
    given = attention.state_dict()
    is_direct = "q_proj.weight" in given
    names = {"kv_a_layernorm": "latent_norm", "q_a_proj": "query_latent", "q_a_layernorm": "query_norm", "o_proj": "output"}
    parts = [(f"{name}.{part}", f"{ours}.{part}") for name, ours in names.items() for part in ("weight", "bias")]
    state = {ours: given[name] for name, ours in parts if name in given}
    state["query.weight"] = swapped(given["q_proj.weight" if is_direct else "q_b_proj.weight"])
    for part in ("weight", "bias"):
        if f"kv_a_proj_with_mqa.{part}" in given:
            state[f"latent.{part}"], state[f"shared_key.{part}"] = given[f"kv_a_proj_with_mqa.{part}"].split([L, R])
    both = given["kv_b_proj.weight"].unflatten(0, (H, C + V))
    state["key.weight"], state["value.weight"] = both[:, :C].flatten(0, 1), both[:, C:].flatten(0, 1)
    rank = None if is_direct else len(given["q_a_proj.weight"])
    ours = LatentAttention(**SIZES, query_latent_dim=rank, bias="o_proj.bias" in given).double().eval()
    ours.load_state_dict(state)
    return ours.requires_grad_(False)


@pytest.mark.parametrize("query_latent_dim", [None, 10])
@pytest.mark.parametrize("bias", [False, True])
def test_latent_attention_equals_deepseek_v3(query_latent_dim: int | None, bias: bool, seed: int) -> None:
    attention = theirs(query_latent_dim, bias)
    ours = copied(attention)
    x, other = torch.randn(2, B, T, D).double().requires_grad_()
    causal = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
    expected, _ = attention(x, tables(0, T), causal)
    y, _ = ours(x, Tokens(mask=Mask(causal=True), rotation=rotation(0, T)))
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    for wanted, found in zip(torch.autograd.grad((expected * other).sum(), x), torch.autograd.grad((y * other).sum(), x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_cached_decoding_equals_deepseek_v3(seed: int) -> None:
    from transformers import DynamicCache

    attention = theirs(10, False)
    ours = copied(attention)
    x = torch.randn(B, T, D).double()
    cache, state = DynamicCache(), None
    for start, stop in ((0, 4), (4, 5), (5, 6), (6, 7)):
        mask = (torch.arange(stop) <= torch.arange(start, stop)[:, None])[None, None]
        expected, _ = attention(x[:, start:stop], tables(start, stop), mask, past_key_values=cache)
        y, state = ours(x[:, start:stop], Tokens(mask=Mask.of(mask), rotation=rotation(start, stop)), state)
        torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
        assert state.key.numel() + state.value.numel() == B * stop * (L + R)  # however many heads


@pytest.mark.parametrize("position", ["alibi", "relative", "rotary", "none"])
def test_single_query_decoding_equals_the_full_pass(position: str, seed: int) -> None:
    mixer = {"name": "latent_attention", "latent_dim": L, "content_dim": C, "value_dim": V}
    model = Transformer(TransformerConfig(d_model=D, num_layers=2, num_heads=H, mixer=mixer, position=position), causal=True).double()
    x = torch.randn(B, T, D).double()
    whole, _ = model(x)
    state = None
    for t in range(T):
        y, state = model(x[:, t : t + 1], state=state)
        torch.testing.assert_close(y[:, 0], whole[:, t], rtol=1e-10, atol=1e-10)


def test_num_heads_is_required() -> None:
    with pytest.raises(ConfigurationError, match="'latent_attention' needs num_heads"):
        LatentAttention(d_model=8, latent_dim=4)


def test_only_latent_attention_may_have_no_rotated_channels() -> None:
    mixer = LatentAttention(**{**SIZES, "head_dim": 0})
    assert mixer.shared_key is None
    with pytest.raises(ConfigurationError, match="content_dim must be positive"):
        LatentAttention(d_model=D, num_heads=H, head_dim=0)
    for name in ("multi_head", "retention", "linear_attention"):
        with pytest.raises(ConfigurationError, match="must be positive"):
            mixers.build(name, **{option: SIZES[option] for option in ("d_model", "num_heads")}, head_dim=0)
