"""Biases of every shape and magnitude, on every backend."""

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit.attention import Attention, FiniteBias

B, H, Q, K, D = 2, 3, 4, 5, 6
INF = float("inf")


def attention(name: str = "scaled_dot_product", dtype: torch.dtype = torch.float64) -> Attention:
    built: Attention = attnkit.attentions.build(name, head_dim=D, num_heads=H).to(dtype)
    built.chunk_elements = 2 * B * H * K * built.pair_width
    return built


def draw(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = torch.randn(B, H, Q, D), torch.randn(B, H, K, D), torch.randn(B, H, K, D)
    return query.to(dtype), key.to(dtype), value.to(dtype)


@pytest.mark.parametrize("shape", [(), (1,), (K,), (Q, K), (Q, 1), (1, K), (H, 1, 1), (H, Q, 1), (B, 1, 1, K), (B, 1, Q, 1), (B, H, Q, K)])
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_bias_of_any_broadcastable_shape_works(shape: tuple[int, ...], is_masked: bool, seed: int) -> None:
    score, given, bias = attention(), draw(), torch.randn(shape).double()
    mask = torch.rand(Q, K) < 0.5 if is_masked else None
    expected = score(*given, mask=mask, attn_bias=bias.expand(B, H, Q, K), backend="reference")
    for backend in ("auto", *score.backends):
        torch.testing.assert_close(score(*given, mask=mask, attn_bias=bias, backend=backend), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(), (K,), (Q, K), (Q, 1), (H, 1, 1), (B, H, Q, K)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_bias_of_minus_infinity_everywhere_gives_zeros(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> None:
    score, given = attention(dtype=dtype), draw(dtype)
    given[0].requires_grad_()
    for backend in ("auto", *score.backends):
        for bias in (torch.full(shape, -INF), torch.full(shape, -INF, dtype=dtype)):
            output = score(*given, attn_bias=bias, backend=backend)
            assert (output == 0).all()
            assert (torch.autograd.grad(output.sum(), given[0])[0] == 0).all()
    assert (score.weights(*given[:2], attn_bias=bias) == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, -70_000.0])
def test_a_bias_below_the_query_dtypes_range_matches_fp32_weights(dtype: torch.dtype, lowest: float, seed: int) -> None:
    score, given = attention(dtype=dtype), draw(dtype)
    bias = torch.zeros(Q, K)
    bias[0] = lowest  # adds the same to every logit of its row, so changes nothing
    bias[1, 2:] = lowest
    bias[2] = torch.linspace(lowest, 0, K)
    mask = torch.arange(K) < K - 1  # hides the only bias of zero in row 2
    largest = bias.masked_fill(~mask, -INF).amax(-1, keepdim=True)
    expected = score.float()(*(x.float() for x in given), mask=mask, attn_bias=bias - largest, backend="reference")
    for backend in ("auto", "reference", "chunked", "sdpa"):
        output = score.to(dtype)(*given, mask=mask, attn_bias=bias, backend=backend)
        torch.testing.assert_close(output.float(), expected, rtol=0.03, atol=0.03, msg=lambda m, backend=backend: f"{backend}: {m}")


def test_a_finite_bias_gives_the_same_result(seed: int) -> None:
    score, given, bias = attention(), draw(), torch.randn(H, Q, K).double()
    assert torch.equal(score(*given, attn_bias=FiniteBias(bias)), score(*given, attn_bias=bias))


def test_a_boolean_bias_is_refused() -> None:
    with pytest.raises(TypeError, match=r"attn_bias is added to the logits .* is boolean; pass a boolean mask as `mask`"):
        attention()(*draw(), attn_bias=torch.ones(Q, K, dtype=torch.bool))
