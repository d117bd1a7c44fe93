"""Query-key normalisation, against a loop over its equation."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit.layers import Transformer, TransformerConfig
from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.multi_head import MultiHeadAttention
from attnkit.norm import Norm
from attnkit.registry import ConfigurationError

D, H, HKV, DH, T = 12, 4, 2, 6, 5


def normalised(x: list[float], norm: Any, kind: str) -> list[float]:
    mean = sum(x) / len(x) if kind == "layer_norm" else 0.0
    scale = math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + norm.eps)
    shift = norm.bias.tolist() if kind == "layer_norm" else [0.0] * len(x)
    return [(v - mean) / scale * g + b for v, g, b in zip(x, norm.weight.tolist(), shift, strict=True)]


def rotated(x: list[float], position: int) -> list[float]:
    """As in Qwen 3 of transformers: x cos + rotate_half(x) sin."""
    half = len(x) // 2
    turned = [-v for v in x[half:]] + x[:half]
    angles = [position * 10000.0 ** (-2 * (i % half) / len(x)) for i in range(len(x))]
    return [v * math.cos(a) + t * math.sin(a) for v, t, a in zip(x, turned, angles, strict=True)]


def loop(attention: Any, x: Tensor, kind: str, after: bool) -> tuple[Tensor, Tensor]:
    """Causal attention of one row [T, D]: norm over the channels of a head before or after the rotation, then the scaled dot product."""

    def placed(x: list[float], norm: Any, position: int) -> list[float]:
        if after:
            return normalised(rotated(x, position), norm, kind)
        return rotated(normalised(x, norm, kind), position)

    def heads(layer: Any, count: int) -> list[list[list[float]]]:
        y = (x @ layer.weight.T + layer.bias).tolist()
        return [[row[h * DH : (h + 1) * DH] for row in y] for h in range(count)]

    q, k, v = heads(attention.query, H), heads(attention.key, HKV), heads(attention.value, HKV)
    outputs, weights = torch.zeros(T, H * DH, dtype=torch.float64), torch.zeros(H, T, T, dtype=torch.float64)
    for h in range(H):
        group = h * HKV // H
        queries = [placed(q[h][t], attention.query_norm, t) for t in range(T)]
        keys = [placed(k[group][t], attention.key_norm, t) for t in range(T)]
        for t in range(T):
            logits = [sum(a * b for a, b in zip(queries[t], keys[s], strict=True)) / math.sqrt(DH) for s in range(t + 1)]
            total = sum(math.exp(value) for value in logits)
            for s, value in enumerate(logits):
                weights[h, t, s] = math.exp(value) / total
                for c in range(DH):
                    outputs[t, h * DH + c] += weights[h, t, s] * v[group][s][c]
    return outputs @ attention.output.weight.T + attention.output.bias, weights


def randomised(module: Any) -> Any:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module.double().eval()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa"])
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@torch.no_grad()
def test_each_head_is_normalised_before_or_after_the_rotation(kind: str, backend: str, after: bool, seed: int) -> None:
    options = {"num_heads": H, "num_kv_heads": HKV, "head_dim": DH, "query_key_norm": kind, "backend": backend}
    attention = randomised(MultiHeadAttention(d_model=D, **options, query_key_norm_after_rotation=after))
    position = attnkit.positions.build("rotary", head_dim=DH).double()
    rotation, x = position.rotation(torch.arange(T)[None]), torch.randn(1, T, D).double()
    with attnkit.record_attention(attention) as maps:
        y, _ = attention(x, Tokens(mask=Mask(causal=True), rotation=rotation))
    expected, weights = loop(attention, x[0], kind, after)
    torch.testing.assert_close(y[0], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(next(iter(maps.values()))[0], weights, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("over", ["head", "all"])
@torch.no_grad()
def test_after_the_rotation_the_score_reads_normalised_queries_and_keys(over: str, seed: int) -> None:
    options: dict[str, Any] = {"num_heads": H, "num_kv_heads": HKV, "query_key_norm": "rms_norm", "query_key_norm_over": over, "clip": 0.5}
    attention = randomised(MultiHeadAttention(d_model=D, attention="general", **options, query_key_norm_after_rotation=True))
    rotation = attnkit.positions.build({"name": "rotary", "fraction": 0.7}, head_dim=3).double().rotation(torch.arange(T)[None])
    x, heads = torch.randn(1, T, D).double(), {"query": H, "key": HKV}
    split = {name: getattr(attention, name)(x).clamp(-0.5, 0.5).unflatten(-1, (n, 3)) for name, n in heads.items()}
    turned = {name: getattr(rotation, name)(part.transpose(1, 2)).transpose(1, 2) for name, part in split.items()}
    norms = {"query": attention.query_norm, "key": attention.key_norm}
    normed = {n: norms[n](p) if over == "head" else norms[n](p.flatten(2)).view(p.shape) for n, p in turned.items()}
    query, key = (normed[name].transpose(1, 2) for name in heads)
    with attnkit.record_attention(attention) as maps:
        attention(x, Tokens(rotation=rotation))
    torch.testing.assert_close(next(iter(maps.values())), attention.attention.weights(query, key), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("attention", [*attnkit.attentions.names(), "after"])
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass(attention: str, seed: int) -> None:
    own: dict[str, Any] = {"attention": attention}
    if attention == "after":
        own = {"position": "rotary", "head_dim": 4, "mixer": {"name": "multi_head", "query_key_norm_after_rotation": True}}
    config = TransformerConfig(d_model=D, num_layers=2, num_heads=H, num_kv_heads=HKV, query_key_norm="rms_norm", **own)
    layers, x = randomised(Transformer(config, causal=True)), torch.randn(2, T, D).double()
    whole, state = layers(x)[0], None
    for t in range(T):
        y, state = layers(x[:, t : t + 1], state=state)
        torch.testing.assert_close(y[:, 0], whole[:, t], rtol=1e-10, atol=1e-10)


def test_query_key_norm_bounds_the_logits_for_any_weights(seed: int) -> None:
    attention = MultiHeadAttention(d_model=D, num_heads=H, query_key_norm="rms_norm")
    x = 1000 * torch.randn(1, T, D)
    with attnkit.record_attention(attention, logits=True) as maps:
        attention(x, Tokens())
    assert next(iter(maps.values())).abs().max() <= math.sqrt(D // H) + 1e-4  # |q| = |k| = sqrt(Dh), so |q . k| / sqrt(Dh) <= sqrt(Dh)


def test_self_and_cross_attention_have_separate_norms_and_none_by_default() -> None:
    spec = {"name": "encoder_decoder", "d_model": 8, "num_layers": 1, "num_heads": 2}
    keys = attnkit.stacks.build({**spec, "query_key_norm": {"name": "rms_norm", "eps": 1e-5}}).state_dict().keys()
    assert {key for key in keys if "query_norm" in key or "key_norm" in key} == {
        f"{half}.layers.0.{kind}.{name}_norm.weight"
        for half, kind in (("encoder", "mixer"), ("decoder", "mixer"), ("decoder", "cross_mixer"))
        for name in ("query", "key")
    }
    assert keys - attnkit.stacks.build(spec).state_dict().keys() == {key for key in keys if "_norm.weight" in key and "mixer." in key}


def test_query_key_norm_is_named_and_checked_like_any_slot() -> None:
    sizes: dict[str, Any] = {"stack": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
    model = attnkit.compose(**sizes, query_key_norm="rms_norm")
    assert model.spec["query_key_norm"] == {"name": "rms_norm", "eps": 1e-6, "learned": True}
    assert attnkit.compose(**sizes).spec["query_key_norm"] is None
    with pytest.raises(ConfigurationError, match=r"unknown norm 'rms'\. Did you mean 'rms_norm'"):
        attnkit.compose(**sizes, query_key_norm="rms")


AFTER = {"name": "multi_head", "query_key_norm_after_rotation": True}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixer": AFTER, "position": "rotary"}, "query_key_norm_after_rotation has no effect without query_key_norm"),
        ({"mixer": AFTER, "query_key_norm": "rms_norm", "position": "xpos"}, "'xpos' does not work with query_key_norm_after_rotation"),
        ({"mixer": AFTER, "query_key_norm": "rms_norm", "position": "alibi"}, "no effect with the position 'alibi', which does not rotate"),
        (
            {"query_key_norm": "rms_norm", "position": "rotary", "layers": [{"mixer": AFTER, "position": "none"}, {}]},
            "no effect with the position 'none'",
        ),
        (
            {"mixer": {"name": "parallel", "mixers": [AFTER, "retention"]}, "query_key_norm": "rms_norm", "position": "none"},
            "no effect with the position 'none'",
        ),
        (
            {"stack": "encoder_decoder", "cross_mixer": AFTER, "query_key_norm": "rms_norm", "position": "rotary"},
            "no effect with the position 'none'",
        ),
    ],
)
def test_a_norm_after_rotation_requires_a_norm_and_a_rotation(options: dict[str, Any], message: str) -> None:
    sizes = {"d_model": 8, "num_layers": 2, "num_heads": 2}
    words = {"src_vocab_size": 9, "tgt_vocab_size": 9} if "stack" in options else {"vocab_size": 9}
    with pytest.raises(ConfigurationError, match=message):
        attnkit.compose(**{"stack": "decoder", **sizes, **words, **options})


def test_layers_without_rotation_are_allowed() -> None:
    layers = [{"position": "none"}, {}]
    sizes: dict[str, Any] = {"stack": "decoder", "d_model": 8, "num_layers": 2, "num_heads": 2, "vocab_size": 9}
    attnkit.compose(**sizes, mixer=AFTER, query_key_norm="rms_norm", position="rotary", layers=layers)


class InSinglePrecision(Norm):
    """As torch's norms under autocast on a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_queries_keys_and_values_share_a_dtype_despite_a_norm_in_fp32(dtype: torch.dtype, seed: int) -> None:
    attention = MultiHeadAttention(d_model=D, num_heads=H, query_key_norm="layer_norm", backend="sdpa")
    attention.query_norm, attention.key_norm = InSinglePrecision(), InSinglePrecision()
    x = torch.randn(1, T, D)
    with torch.autocast("cpu", dtype=dtype):
        y, memory = attention(x, Tokens())
        assert memory.key.dtype == memory.value.dtype == dtype
        assert torch.isfinite(y).all()
