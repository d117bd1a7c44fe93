"""Each attention against a slow loop over its paper's equation, in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit.attention import Attention

B, H, HKV, Q, K, D, DV = 2, 4, 2, 3, 5, 6, 3

Score = Callable[[Attention, int, int, Tensor, Tensor], float]


def dot(q: Tensor, k: Tensor) -> float:
    return sum(float(a) * float(b) for a, b in zip(q, k, strict=True))


def additive(attention: Attention, h: int, g: int, q: Tensor, k: Tensor) -> float:
    w, u, v = attention.query_weight[h], attention.key_weight[g], attention.score_weight[h]
    return sum(float(v[a]) * math.tanh(dot(w[:, a], q) + dot(u[:, a], k)) for a in range(len(v)))


def general(attention: Attention, h: int, g: int, q: Tensor, k: Tensor) -> float:
    return sum(float(q[i]) * float(attention.weight[h, i, j]) * float(k[j]) for i in range(D) for j in range(D))


SCORES: dict[str, Score] = {
    "additive": additive,
    "cosine": lambda attention, h, g, q, k: float(attention.head_scale[h]) * dot(q, k) / math.sqrt(dot(q, q) * dot(k, k)),
    "dot_product": lambda attention, h, g, q, k: dot(q, k),
    "general": general,
    "scaled_dot_product": lambda attention, h, g, q, k: dot(q, k) / math.sqrt(D),
}


def test_every_built_in_attention_has_its_equation_here() -> None:
    assert set(SCORES) == attnkit.attentions.built_in()


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("is_masked", [False, True])
def test_equation(name: str, is_masked: bool, seed: int) -> None:
    attention = attnkit.attentions.build(name, head_dim=D, num_heads=H, num_kv_heads=HKV).double()
    for parameter in attention.requires_grad_(False).parameters():
        torch.nn.init.normal_(parameter)
    query, key = torch.randn(B, H, Q, D).double(), torch.randn(B, HKV, K, D).double()
    value, bias = torch.randn(B, HKV, K, DV).double(), torch.randn(H, Q, K).double()
    mask = torch.rand(B, H, Q, K) < 0.5 if is_masked else torch.ones(B, H, Q, K, dtype=torch.bool)
    expected, weights = torch.zeros(B, H, Q, DV).double(), torch.zeros(B, H, Q, K).double()
    for b in range(B):
        for h in range(H):
            g = h * HKV // H
            for i in range(Q):
                keys = [j for j in range(K) if mask[b, h, i, j]]
                exponentials = {
                    j: math.exp(SCORES[name](attention, h, g, query[b, h, i], key[b, g, j]) + float(bias[h, i, j])) for j in keys
                }
                for j in keys:
                    weights[b, h, i, j] = exponentials[j] / sum(exponentials.values())
                    expected[b, h, i] += weights[b, h, i, j] * value[b, g, j]
    for backend in ("auto", *attention.backends):
        output = attention(query, key, value, mask=mask if is_masked else None, attn_bias=bias, backend=backend)
        torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10, msg=lambda m, backend=backend: f"{backend}: {m}")
    torch.testing.assert_close(attention.weights(query, key, mask=mask, attn_bias=bias), weights, rtol=1e-10, atol=1e-10)


def test_unknown_backends_are_refused_with_the_valid_names() -> None:
    attention = attnkit.attentions.build("additive", head_dim=2)
    x = torch.zeros(1, 1, 1, 2)
    with pytest.raises(ValueError, match="no backend 'sdpa': its score is not an inner product; choose 'auto' or one of reference"):
        attention(x, x, x, backend="sdpa")


@pytest.mark.parametrize("heads", [0, 3, -1])
def test_invalid_numbers_of_heads_are_rejected(heads: int) -> None:
    with pytest.raises(ValueError, match="num_kv_heads"):
        attnkit.attentions.build("dot_product", head_dim=2, num_heads=4, num_kv_heads=heads)


def test_integer_masks_are_refused_with_a_hint() -> None:
    attention = attnkit.attentions.build("dot_product", head_dim=2)
    x = torch.zeros(1, 1, 3, 2)
    with pytest.raises(TypeError, match=r"True = attend.*int64.*from_torch"):
        attention(x, x, x, mask=torch.ones(3, 3, dtype=torch.long))


def test_the_scale_of_cosine_starts_as_configured_and_bounds_the_logits(seed: int) -> None:
    attention = attnkit.attentions.build({"name": "cosine", "initial_scale": 3.0}, head_dim=4, num_heads=2)
    assert attention.head_scale.tolist() == [3.0, 3.0]
    query, key = torch.randn(2, 1, 2, 9, 4) * 1000
    assert attention.score(attention.project_query(query), attention.project_key(key)).abs().max() <= 3.0001


def test_cosine_of_zeros_is_zero_in_every_precision() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        cosine = attnkit.attentions.build("cosine", head_dim=4, num_heads=2).to(dtype)
        zeros = torch.zeros(1, 2, 3, 4, dtype=dtype)
        assert torch.equal(cosine.project_key(zeros), zeros)
        assert torch.equal(cosine.project_query(zeros), zeros)
