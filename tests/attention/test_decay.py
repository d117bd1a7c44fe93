"""The decay bias, as a matrix and as channels of queries and keys."""

import pytest
import torch

from attnkit.attention import DecayBias
from attnkit.attention.scaled_dot_product import ScaledDotProduct
from attnkit.masks import Mask

B, H, T, D = 2, 4, 7, 6
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()


def decays(most: float = 3.0) -> DecayBias:
    sums = -(most * torch.rand(B, H, T, 1, dtype=torch.float64)).cumsum(-2)
    return DecayBias(sums, sums)


@pytest.mark.parametrize("kv_heads", [H, 2, 1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2**-21), (torch.bfloat16, 2**-21)])
def test_the_channels_give_the_bias_of_each_head(kv_heads: int, dtype: torch.dtype, tolerance: float, seed: int) -> None:
    bias = decays(most=300.0)
    query, key = torch.zeros(B, H, T, 16, dtype=dtype), torch.zeros(B, kv_heads, T, 16, dtype=dtype)
    widened = bias.as_channels(query, key, 0.3)
    assert widened is not None
    assert all(x.dtype == dtype and x.shape[-1] % 8 == 0 for x in widened)
    query, key = (x.double() for x in widened)  # all errors are those of the channels
    found = 0.3 * query @ key.repeat_interleave(H // kv_heads, 1).mT
    # 24 binary digits of each sum
    torch.testing.assert_close(found[..., CAUSAL], bias.values[..., CAUSAL], rtol=0, atol=tolerance * bias.key.abs().max().item())


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"talking_heads": True}, {"scale": 0.7}, {"normalizer": "softmax_with_sink"}])
@pytest.mark.parametrize("kv_heads", [H, 2])
def test_attention_with_a_decay_equals_attention_with_its_matrix(options: dict[str, object], kv_heads: int, seed: int) -> None:
    attention = ScaledDotProduct(head_dim=D, num_heads=H, num_kv_heads=kv_heads).configure(**options).double()  # type: ignore[arg-type]
    query, key, value = (torch.randn(B, heads, T, D, dtype=torch.float64) for heads in (H, kv_heads, kv_heads))
    bias = decays()
    found, expected = (attention(query, key, value, mask=Mask(causal=True), attn_bias=b) for b in (bias, bias.values))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    weights = attention.weights(query, key, mask=Mask(causal=True), attn_bias=bias)
    torch.testing.assert_close(weights, attention.weights(query, key, mask=Mask(causal=True), attn_bias=bias.values))


class Halved(ScaledDotProduct):
    """A score that is no longer the inner product."""

    def score(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return super().score(query, key) / 2


def test_a_class_that_overrides_the_score_gets_the_matrix(seed: int) -> None:
    query, key, value = torch.randn(3, B, H, T, D, dtype=torch.float64)
    bias, attention = decays(), Halved(head_dim=D, num_heads=H)
    found, expected = (attention(query, key, value, mask=Mask(causal=True), attn_bias=b) for b in (bias, bias.values))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_a_single_query_and_fp16_get_no_channels() -> None:
    x = torch.zeros(B, H, T, D)
    assert decays().as_channels(x[..., -1:, :], x, 1.0) is None
    assert decays().as_channels(x.half(), x.half(), 1.0) is None


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(("width", "value_width"), [(6, 4), (4, 6)])
@pytest.mark.parametrize("length", [5, 1024])
def test_values_narrower_or_wider_than_keys_are_attended_alike_by_every_kernel(
    length: int, width: int, value_width: int, grad: bool, seed: int
) -> None:
    attention = ScaledDotProduct(head_dim=width, num_heads=1)
    query, key = torch.randn(2, 1, 1, length, width, requires_grad=grad)
    value = torch.randn(1, 1, length, value_width)
    with torch.set_grad_enabled(grad):
        found, expected = (attention(query, key, value, mask=Mask(causal=True), backend=name) for name in ("sdpa", "chunked"))
    assert found.shape == (1, 1, length, value_width)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_equal_sums_have_gradients_though_their_bias_is_at_its_limit() -> None:
    """From torch 2.14 on, `clamp` has none at its limits."""
    query, key = (torch.zeros(1, 1, 3, 1, requires_grad=True) for _ in range(2))
    DecayBias(query, key).values.sum().backward()
    assert query.grad is not None
    assert key.grad is not None
    assert torch.equal(query.grad, -key.grad)
    assert (query.grad == 3).all()
