"""Which backend computes a score: never one that does not read all of it."""

import pytest
import torch
from torch import Tensor, nn

import attnkit
from attnkit.attention import InnerProduct
from attnkit.attention.scaled_dot_product import ScaledDotProduct
from attnkit.layers import MultiHead

H, T, D = 2, 9, 4


class Softcapped(ScaledDotProduct):
    """Logits within (-2, 2)."""

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return 2 * torch.tanh(super().score(query, key) / 2)


class MoreSoftcapped(Softcapped):
    """Inherits the override."""


class Learned(InnerProduct):
    """A trained scale, which a fused kernel would read as a constant."""

    def __init__(self, *, head_dim: int, num_heads: int = 1, num_kv_heads: int | None = None) -> None:
        super().__init__(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.log_scale = nn.Parameter(torch.tensor(-0.5))

    @property
    def scale(self) -> Tensor:  # type: ignore[override]
        return self.log_scale.exp()


class Projected(ScaledDotProduct):
    """Queries and keys changed alike: every backend reads projections."""

    scale = 0.25

    def project_query(self, query: Tensor) -> Tensor:
        return query.flip(-1) * 3

    def project_key(self, key: Tensor) -> Tensor:
        return key.flip(-1)


@pytest.mark.parametrize("kind", [Softcapped, MoreSoftcapped, Learned])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_auto_computes_the_score_that_the_class_says(kind: type[InnerProduct], dtype: torch.dtype, seed: int) -> None:
    attention = kind(head_dim=D, num_heads=H)
    query, key, value = (3 * torch.randn(3, 1, H, T, D)).to(dtype)
    expected = attention(query, key, value, backend="reference")
    assert torch.equal(attention(query, key, value), expected)
    weights = attention.weights(query, key)
    assert torch.equal((weights.to(dtype) @ value), expected)
    attention.chunk_elements = 1
    torch.testing.assert_close(attention(query, key, value), expected, rtol=1e-2, atol=1e-2)


def test_an_overridden_score_of_one_object_is_read_too(seed: int) -> None:
    attention = ScaledDotProduct(head_dim=D, num_heads=H)
    attention.score = lambda query, key: -(query @ key.mT)  # type: ignore[method-assign]
    query, key, value = torch.randn(3, 1, H, T, D)
    assert torch.equal(attention(query, key, value), attention(query, key, value, backend="reference"))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            Softcapped,
            "Softcapped overrides `score`, which the fused kernels of backend 'sdpa' do not read; choose 'auto' or one of reference",
        ),
        (Learned, "Learned has a scale that is not a plain number, which the fused kernels of backend 'sdpa' do not read; choose 'auto'"),
    ],
)
def test_a_backend_that_does_not_read_the_score_is_refused(kind: type[InnerProduct], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attnkit.attentions._classes, "own", kind)
    x = torch.zeros(1, 1, T, D)
    with pytest.raises(ValueError, match=reason):
        kind(head_dim=D)(x, x, x, backend="sdpa")
    with pytest.raises(ValueError, match=reason):
        MultiHead(d_model=D, num_heads=1, attention="own", backend="sdpa")
    assert "sdpa" not in kind(head_dim=D).backends


def test_overridden_projections_and_scales_keep_every_backend(seed: int) -> None:
    attention = Projected(head_dim=D, num_heads=H).double()
    query, key, value = torch.randn(3, 1, H, T, D).double()
    assert attention.backends == ("reference", "chunked", "sdpa")
    expected = attention(query, key, value, backend="reference")
    for backend in ("chunked", "sdpa"):
        torch.testing.assert_close(attention(query, key, value, backend=backend), expected, rtol=1e-10, atol=1e-10)
