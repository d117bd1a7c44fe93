"""Products in half precision on a processor without instructions for it, pretended where there are some."""

import contextlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import attnkit.half
from attnkit.half import HALF, products_in_float32
from attnkit.optimizer import muon
from attnkit.optimizer.muon import orthogonalise


@pytest.fixture(autouse=True)
def _without_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attnkit.half, "has_bfloat16", lambda: False)


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def biased(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


CALLS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(5, 7), (7, 3)]),
    "bmm": (torch.bmm, [(2, 5, 7), (2, 7, 3)]),
    "linear": (F.linear, [(2, 5, 7), (3, 7), (3,)]),
    "baddbmm": (lambda x, a, b: torch.baddbmm(x, a, b, beta=0.5, alpha=2), [(2, 5, 3), (2, 5, 7), (2, 7, 3)]),
    "convolution": (lambda x, w, b: F.conv1d(x, w, b, padding=1), [(2, 4, 9), (6, 4, 3), (6,)]),
    "depthwise": (lambda x, w: F.conv1d(x, w, groups=4), [(2, 4, 9), (4, 1, 3)]),
    "attention": (causal, [(2, 3, 9, 8)] * 3),
    "biased attention": (biased, [(2, 3, 9, 8)] * 3 + [(9, 9)]),
}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", CALLS)
def test_half_precision_products_equal_rounded_float32_ones(name: str, dtype: torch.dtype, seed: int) -> None:
    call, shapes = CALLS[name]
    half = [torch.randn(shape).to(dtype).requires_grad_(name != "biased attention" or i < 3) for i, shape in enumerate(shapes)]
    wide = [x.detach().float().requires_grad_(x.requires_grad) for x in half]
    expected = call(*wide)
    seeds = torch.randn_like(expected).to(dtype)
    with products_in_float32():
        found = call(*half)
        gradients = torch.autograd.grad(found, [x for x in half if x.requires_grad], seeds)
    assert found.dtype == dtype
    assert torch.equal(found, expected.to(dtype))
    for gradient, exact in zip(gradients, torch.autograd.grad(expected, [x for x in wide if x.requires_grad], seeds.float()), strict=True):
        assert gradient.dtype == dtype  # of attention, from an output that was rounded
        torch.testing.assert_close(gradient.float(), exact, rtol=0, atol=float(8 * torch.finfo(dtype).eps * exact.abs().max()))


@pytest.mark.parametrize("dtype", HALF)
def test_products_may_be_written_into_a_given_tensor(dtype: torch.dtype, seed: int) -> None:
    a, b, x = torch.randn(2, 5, 7).to(dtype), torch.randn(2, 7, 3).to(dtype), torch.randn(2, 5, 3).to(dtype)
    with products_in_float32():
        out = torch.empty(0, dtype=dtype)
        assert torch.mm(a[0], b[0], out=out) is out
        assert torch.equal(out, (a[0].float() @ b[0].float()).to(dtype))
        y = x.clone()
        assert y.baddbmm_(a, b, beta=0.5) is y
        assert torch.equal(y, torch.baddbmm(x.float(), a.float(), b.float(), beta=0.5).to(dtype))


def conversions(call: Callable[[], object]) -> int:
    """Return how many tensors `call` converts to another type."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        call()
    return sum(event.name == "aten::_to_copy" for event in recorded.events())


def test_the_context_ends_and_never_converts_float32(seed: int) -> None:
    a, b = torch.randn(33, 65), torch.randn(65, 17)
    half_a, half_b, expected = a.bfloat16(), b.bfloat16(), a @ b
    with contextlib.suppress(KeyError), products_in_float32():
        with products_in_float32():  # does not end the outer block
            pass
        assert conversions(lambda: half_a @ half_b) == 3
        assert conversions(lambda: a @ b) == 0
        assert torch.equal(a @ b, expected)
        raise KeyError
    assert conversions(lambda: half_a @ half_b) == 0


def test_muon_orthogonalises_with_bfloat16_rounding(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    a, b, c = muon.COEFFICIENTS
    weight = torch.nn.Parameter(torch.randn(8, 24))
    weight.grad = torch.randn(8, 24)
    found: list[Tensor] = []

    def recorded(x: Tensor) -> Tensor:
        expected = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)
        for _ in range(muon.STEPS):
            wide = expected.float()
            gram = torch.bmm(wide, wide.mT).bfloat16().float()
            inner = torch.baddbmm(gram, gram, gram, beta=b, alpha=c).bfloat16().float()
            expected = torch.baddbmm(wide, inner, wide, beta=a).bfloat16()
        found.extend([orthogonalise(x), expected])
        return found[0]

    monkeypatch.setattr(muon, "orthogonalise", recorded)
    muon.Muon([{"params": [weight], "matrices": True}]).step()
    assert torch.equal(*found)
