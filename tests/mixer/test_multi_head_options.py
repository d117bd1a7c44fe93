"""The options of multi-head attention against transformers' implementations with copied weights, and against loops."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnkit
from attnkit import masks
from attnkit.attention.scaled_dot_product import ScaledDotProduct
from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.multi_head import MultiHeadAttention
from attnkit.position.rotary import Rotary
from attnkit.recording import record_attention
from attnkit.registry import ConfigurationError
from attnkit.testing import Check, checks_for

B, T, D, H, HKV, DH = 2, 6, 24, 4, 2, 6
SIZES = {"d_model": D, "num_heads": H, "num_kv_heads": HKV, "head_dim": DH}
THEIRS: dict[str, Any] = {"hidden_size": D, "num_attention_heads": H, "num_key_value_heads": HKV, "head_dim": DH}
NAMES = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output", "q_norm": "query_norm", "k_norm": "key_norm"}


KIT = [
    {"memory_keys": 3, "gate": "channel"},
    {"differential": 0.2, "gate": "head", "softcap": 2.0},
    {"normalizer": "softmax_with_sink", "scale": 1.5, "biases": ["query", "key", "value"]},
    {"normalizer": "sigmoid", "talking_heads": True, "sub_norm": "rms_norm"},
]


CHECKS = [
    pytest.param(check, id=f"{'-'.join(options)}-{check.name}")
    for options in KIT
    for check in checks_for("mixers", {"name": "multi_head", **options})
    if check.name != "no_argument_is_silent"  # `test_testing.py` tries each pair of options
]


@pytest.mark.parametrize("check", CHECKS)
def test_conformance(check: Check) -> None:
    check()


def test_options_that_have_parameters_per_head_have_them_whatever_the_score_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Headless(ScaledDotProduct):
        def __init__(self, *, head_dim: int) -> None:
            super().__init__(head_dim=head_dim)

    monkeypatch.setitem(attnkit.attentions._classes, "headless", Headless)
    options: Any = {"normalizer": "softmax_with_sink", "talking_heads": True}
    own, other = (MultiHeadAttention(**SIZES, **options, attention=name) for name in ("headless", "scaled_dot_product"))
    own.load_state_dict(other.state_dict())
    x = torch.randn(B, T, D)
    assert torch.equal(own(x, Tokens())[0], other(x, Tokens())[0])


def draw(module: Any) -> Any:
    """Draw all weights, and compute norms in float64, where transformers' compute in fp32."""
    for name, norm in list(module.named_children()):
        if name.endswith("_norm"):
            setattr(module, name, nn.RMSNorm(len(norm.weight), eps=1e-6))
    for parameter in module.requires_grad_(False).parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


def copied(theirs: nn.Module, other: dict[str, Tensor], **options: Any) -> MultiHeadAttention:
    state = {name.replace(old, new): x for name, x in theirs.state_dict().items() for old, new in NAMES.items() if name.startswith(old)}
    ours = MultiHeadAttention(**SIZES, **options).double().eval().requires_grad_(False)
    ours.load_state_dict({**state, **other})
    return ours


def assert_equal(ours: MultiHeadAttention, theirs: Any, *, window: int | None = None, tolerance: float = 1e-10) -> None:
    """Compare values and gradients of causal attention with rotary positions."""
    x, other = torch.randn(2, B, T, D).double().requires_grad_()
    t = torch.arange(T)[None]
    rotation = Rotary(head_dim=DH).double().rotation(t)
    copies = 1 if type(theirs).__name__ == "GptOssAttention" else 2  # of the angles, in transformers' tables
    tables = tuple(torch.cat([table[:, 0]] * copies, -1) for table in (rotation.cos, rotation.sin))
    allowed = masks.combine(masks.causal(t, t), None if window is None else masks.sliding_window(t, t, window))
    assert allowed is not None
    added = torch.zeros(allowed.shape).double().masked_fill(~allowed, float("-inf"))
    expected, _ = theirs(hidden_states=x, position_embeddings=tables, attention_mask=added)
    y, _ = ours(x, Tokens(mask=Mask.of(allowed), rotation=rotation))
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)
    (wanted,), (found,) = (torch.autograd.grad((value * other).sum(), x) for value in (expected, y))
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("window", [None, 3])
def test_sinks_and_biases_equal_those_of_gpt_oss(window: int | None, seed: int) -> None:
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

    theirs = draw(GptOssAttention(GptOssConfig(**THEIRS, attention_bias=True, attn_implementation="eager"), layer_idx=0))
    ours = copied(theirs, {"attention.normalizer.sink": theirs.sinks}, normalizer="softmax_with_sink")
    assert_equal(ours, theirs, window=window)


def test_the_gate_equals_that_of_qwen3_next(seed: int) -> None:
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

    theirs = draw(Qwen3NextAttention(Qwen3NextConfig(**THEIRS, attention_bias=True, attn_implementation="sdpa"), layer_idx=0))
    both = {part: getattr(theirs.q_proj, part).unflatten(0, (H, 2, DH)).unbind(1) for part in ("weight", "bias")}  # query and gate
    other = {f"{name}.{part}": x.flatten(0, 1) for part, xs in both.items() for name, x in zip(("query", "gate"), xs, strict=True)}
    assert_equal(copied(theirs, other, query_key_norm="rms_norm", gate="channel"), theirs)


def test_a_norm_over_all_heads_equals_that_of_olmo_2(seed: int) -> None:
    from transformers import Olmo2Config
    from transformers.models.olmo2.modeling_olmo2 import Olmo2Attention

    theirs = draw(Olmo2Attention(Olmo2Config(**THEIRS, attention_bias=False, attn_implementation="sdpa"), layer_idx=0))
    assert_equal(copied(theirs, {}, query_key_norm="rms_norm", query_key_norm_over="all", bias=False), theirs)


@pytest.mark.parametrize(("std", "tolerance"), [(0.0, 1e-10), (0.5, 1e-6)])  # their factor is computed in fp32, where exp(0) is exact
def test_differential_attention_equals_that_of_diffllama(std: float, tolerance: float, seed: int) -> None:
    from transformers import DiffLlamaConfig
    from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

    theirs = draw(DiffLlamaAttention(DiffLlamaConfig(**THEIRS, rms_norm_eps=1e-5, attn_implementation="sdpa"), layer_idx=2))
    for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
        nn.init.normal_(getattr(theirs, name), std=std)
    other = {
        "differential.query": torch.stack([theirs.lambda_q1, theirs.lambda_q2]),
        "differential.key": torch.stack([theirs.lambda_k1, theirs.lambda_k2]),
        "differential.norm.weight": torch.ones(2 * DH),
    }
    assert_equal(copied(theirs, other, bias=False, differential=theirs.lambda_init), theirs, tolerance=tolerance)


@pytest.mark.parametrize("bias", [False, True])
def test_biases_by_projection(bias: bool) -> None:
    def named(**options: Any) -> set[str]:
        mixer = MultiHeadAttention(**SIZES, bias=bias, gate="head", **options)
        return {name.removesuffix(".bias") for name, _ in mixer.named_parameters() if name.endswith(".bias")}

    assert named() == ({"query", "key", "value", "gate", "output"} if bias else set())
    assert named(biases=["gate"]) == {"gate"}
    assert named(biases=["query", "key", "value"]) == {"query", "key", "value"}  # Qwen2
    assert named(biases=["query", "value", "output"]) == {"query", "value", "output"}  # Whisper


@pytest.mark.parametrize("differential", [None, 0.3])
def test_a_gate_per_head_scales_each_head(differential: float | None, seed: int) -> None:
    gated = draw(MultiHeadAttention(**SIZES, gate="head", differential=differential))
    plain = MultiHeadAttention(**SIZES, differential=differential).double().eval()
    plain.load_state_dict({name: x for name, x in gated.state_dict().items() if "gate" not in name})
    x = torch.randn(B, T, D).double()
    heads = {}
    plain.output.register_forward_pre_hook(lambda module, args: heads.update(x=args[0]))
    plain(x, Tokens())
    expected, count = torch.zeros(B, T, H * DH).double(), H if differential is None else H // 2
    for h in range(count):
        gate = 1 / (1 + (-(x @ gated.gate.weight[h] + gated.gate.bias[h])).exp())
        own = slice(h * H * DH // count, (h + 1) * H * DH // count)
        expected[..., own] = heads["x"][..., own] * gate[..., None]
    torch.testing.assert_close(gated(x, Tokens())[0], gated.output(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"gate": "channel"}, {"differential": 0.3}])
@pytest.mark.parametrize("backend", ["reference", "sdpa", "blockwise"])
def test_a_sub_norm_applies_before_the_output(backend: str, options: dict[str, Any], seed: int) -> None:
    normed, plain = (draw(MultiHeadAttention(**SIZES, backend=backend, **options, **own)) for own in ({"sub_norm": "layer_norm"}, {}))
    plain.load_state_dict({name: x for name, x in normed.state_dict().items() if "sub_norm" not in name})
    plain.output.register_forward_pre_hook(lambda module, args: (normed.sub_norm(args[0]),))
    x, one = torch.randn(B, T, D).double(), Tokens()
    whole = normed(x, Tokens(mask=Mask(causal=True)))[0]
    torch.testing.assert_close(whole, plain(x, Tokens(mask=Mask(causal=True)))[0], rtol=1e-10, atol=1e-10)
    state = None
    for t in range(T):
        y, state = normed(x[:, t : t + 1], one, state)
        torch.testing.assert_close(y[:, 0], whole[:, t], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("attention", ["scaled_dot_product", "additive"])
@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_memory_keys_are_read_by_every_query(attention: str, mask: str, seed: int) -> None:
    mixer = draw(MultiHeadAttention(**SIZES, attention=attention, memory_keys=3))
    given = {"none": None, "causal": Mask(causal=True), "padding": Mask.of(torch.tensor([[[[True] * 4 + [False] * 2]], [[[False] * T]]]))}
    x, bias = torch.randn(B, T, D).double(), torch.randn(1, H, T, T).double()
    y, state = mixer(x, Tokens(mask=given[mask], bias=bias))
    assert state.key.shape[-2] == T
    score = mixer.attention
    query = score.project_query(mixer.query(x).unflatten(-1, (H, DH)).transpose(1, 2))
    allowed = torch.ones(B, 1, T, T, dtype=torch.bool) if mask != "causal" else torch.ones(T, T, dtype=torch.bool).tril()[None, None]
    allowed = allowed if mask != "padding" else torch.tensor([[True] * 4 + [False] * 2, [False] * T])[:, None, None]
    allowed = allowed.expand(B, 1, T, T)
    memory = score.project_key(mixer.memory_keys.key[None])
    heads = torch.zeros(B, H, T, DH).double()
    for b in range(B):
        for h in range(H):
            for i in range(T):
                keys = [memory[0, h // 2, n] for n in range(3)] + [state.key[b, h // 2, j] for j in range(T) if allowed[b, 0, i, j]]
                added = [0.0] * 3 + [float(bias[0, h, i, j]) for j in range(T) if allowed[b, 0, i, j]]
                values = [*mixer.memory_keys.value[h // 2], *(state.value[b, h // 2, j] for j in range(T) if allowed[b, 0, i, j])]
                one = query[b, h, i].expand(1, H, 1, -1)
                logits = [float(score.score(one, k.expand(1, H, 1, -1))[0, h, 0, 0]) + a for k, a in zip(keys, added, strict=True)]
                total = sum(map(math.exp, logits))
                heads[b, h, i] = sum(math.exp(z) / total * v for z, v in zip(logits, values, strict=True))
    expected = mixer.output(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)


def test_recorded_maps_omit_memory_keys(seed: int) -> None:
    mixer = MultiHeadAttention(**SIZES, memory_keys=3)
    with record_attention(mixer) as maps:
        mixer(torch.randn(B, T, D), Tokens())
    (weights,) = maps.values()
    assert weights.shape == (B, H, T, T)
    assert (weights.sum(-1) < 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3, "num_kv_heads": 1, "differential": 0.2}, r"num_heads and num_kv_heads \(3, 1\) must be even"),
        ({"differential": 1.0}, r"in \[0, 1\), but is 1.0"),
        ({"scale": float("nan")}, "scale must be positive"),
        ({"query_key_norm_over": "all"}, "has no effect without query_key_norm"),
        ({"biases": ["gate"]}, "there is no gate"),
        ({"gate_activation": "softplus"}, "gate_activation has no effect without gate"),
        ({"value_dim": 0}, "value_dim must be positive"),
        ({"head_dim": 0}, "widths of the mixer 'multi_head' must be positive|head_dim must be positive"),
        ({"memory_keys": -1}, "memory_keys must not be negative"),
        ({"softcap": 0.0}, "softcap must be positive"),
        ({"softcap": float("inf")}, "softcap must be positive and finite, but is inf"),
        ({"clip": float("nan")}, "clip must be positive and finite, but is nan"),
        ({"normalizer": "soft"}, "Did you mean 'softmax'"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, ConfigurationError), match=message):
        MultiHeadAttention(**{**SIZES, **options})


def test_a_bias_of_an_unknown_projection_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"biases must be list\[Literal\['query', .*\] \| None, but is \['query', 'q'\]"):
        attnkit.mixers.resolve({"name": "multi_head", "biases": ["query", "q"]})


def test_memory_keys_have_no_position(seed: int) -> None:
    """Neither rotation nor norm concerns them: Sukhbaatar et al. 2019 give them no position, and x-transformers rotates tokens alone."""
    mixer = draw(MultiHeadAttention(**SIZES, memory_keys=3, query_key_norm="rms_norm"))
    rotary = attnkit.positions.build("rotary", d_model=D, head_dim=DH, num_heads=H, bidirectional=True)
    rotation = rotary.double().rotation(torch.arange(T)[None])
    x = torch.randn(B, T, D).double()
    y, _ = mixer(x, Tokens(rotation=rotation))

    def heads(linear: nn.Module, norm: nn.Module) -> Tensor:
        return norm(linear(x).unflatten(-1, (-1, DH))).transpose(1, 2)

    query, key = rotation.query(heads(mixer.query, mixer.query_norm)), rotation.key(heads(mixer.key, mixer.key_norm))
    memory = mixer.memory_keys
    keys, values = (
        torch.cat([memory.key.expand(B, -1, -1, -1), key], 2),
        torch.cat([memory.value.expand(B, -1, -1, -1), heads(mixer.value, nn.Identity())], 2),
    )
    keys, values = (part.repeat_interleave(H // part.shape[1], 1) for part in (keys, values))
    weights = (query @ keys.mT / DH**0.5).softmax(-1)
    torch.testing.assert_close(y, mixer.output((weights @ values).transpose(1, 2).flatten(2)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rotates_first", [False, True])
def test_clip_bounds_what_positions_rotate(rotates_first: bool, seed: int) -> None:
    """After a norm that precedes the rotation, as in transformers' OLMoE, and before a norm that follows it."""
    bound = 0.3
    mixer = draw(MultiHeadAttention(**SIZES, clip=bound, query_key_norm="rms_norm", query_key_norm_after_rotation=rotates_first))
    rotary = attnkit.positions.build("rotary", d_model=D, head_dim=DH, num_heads=H, bidirectional=True)
    rotation = rotary.double().rotation(torch.arange(T)[None])
    x = torch.randn(B, T, D).double()
    y, _ = mixer(x, Tokens(rotation=rotation))

    def placed(linear: nn.Module, norm: nn.Module, rotate: Any) -> Tensor:
        heads = linear(x).unflatten(-1, (-1, DH)).transpose(1, 2)
        return norm(rotate(heads.clamp(-bound, bound))) if rotates_first else rotate(norm(heads).clamp(-bound, bound))

    query = placed(mixer.query, mixer.query_norm, rotation.query)
    key = placed(mixer.key, mixer.key_norm, rotation.key).repeat_interleave(H // HKV, 1)
    value = mixer.value(x).unflatten(-1, (-1, DH)).transpose(1, 2).clamp(-bound, bound).repeat_interleave(H // HKV, 1)
    weights = (query @ key.mT / DH**0.5).softmax(-1)
    torch.testing.assert_close(y, mixer.output((weights @ value).transpose(1, 2).flatten(2)), rtol=1e-10, atol=1e-10)
