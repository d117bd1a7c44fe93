"""Additive attention never materialises the full tensor of tanh values, B.H.Q.K.A."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import attnkit
from attnkit import draws
from attnkit.attention.additive import Additive
from attnkit.attention.backend import Refused, additive_compiled, additive_eager, additive_tiles, blocks
from attnkit.attention.backend.base import ordered
from attnkit.masks import Mask
from tests.attention.largest import LargestTensor

B, H, T, A, D = 2, 2, 24, 16, 4


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_neither_pass_creates_a_tensor_of_all_pairs(kv_heads: int, seed: int) -> None:
    attention = attnkit.attentions.build({"name": "additive", "hidden_dim": A}, head_dim=D, num_heads=H, num_kv_heads=kv_heads)
    query, key, value = torch.randn(B, H, T, D), torch.randn(B, kv_heads, T, D), torch.randn(B, kv_heads, T, D)
    query.requires_grad_()
    mask = torch.rand(B, H, T, T) < 0.7
    attention.chunk_elements = B * H * T * A * 3  # three queries
    with LargestTensor() as largest:
        output = attention(query, key, value, mask=mask, dropout=0.1)
        output.sum().backward()
        attention.weights(query, key, mask=mask)
    assert B * H * T * A < largest.numel <= B * H * 3 * T * A
    attention.chunk_elements = 2**22  # now it fits, which shows that the measurement works
    with LargestTensor() as largest:
        attention(query, key, value, mask=mask)
    assert largest.numel == B * H * T * T * A


def test_memory_for_the_backward_pass_does_not_grow_with_the_pairs(seed: int) -> None:
    attention = attnkit.attentions.build({"name": "additive", "hidden_dim": A}, head_dim=D, num_heads=H)
    attention.chunk_elements = B * H * T * A * 2
    query, key, value = torch.randn(3, B, H, T, D)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):  # type: ignore[func-returns-value]
        attention(query.requires_grad_(), key, value)
    assert 0 < max(kept, default=0) <= B * H * T * A


def test_a_non_positive_hidden_width_is_rejected() -> None:
    with pytest.raises(ValueError, match="hidden_dim must be positive, but is 0"):
        attnkit.attentions.build({"name": "additive", "hidden_dim": 0}, head_dim=4)


TILED = ("additive_eager", "additive_compiled")


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tiles are compiled, too."""
    monkeypatch.setattr(additive_tiles, "MIN_COMPILED", 1)


def _exact(attention: Additive, query: Tensor, key: Tensor) -> Tensor:
    """Return the logits in float64 by the equation."""
    hidden = torch.tanh(query.double()[:, :, :, None] + key.double()[:, :, None])
    return (hidden * attention.score_weight.double()[:, None, None]).sum(-1)


@pytest.mark.usefixtures("compiles")
@pytest.mark.parametrize("size", [1.0, 30.0, 100.0, 1e4])
@pytest.mark.parametrize("backend", TILED)
def test_inputs_of_any_size_are_exact_to_rounding(size: float, backend: str, seed: int) -> None:
    attention = attnkit.attentions.build({"name": "additive", "hidden_dim": A}, head_dim=D, num_heads=H)
    query, value = size * torch.randn(B, H, T, A), torch.randn(B, H, T, D)
    key = torch.where(torch.rand(B, H, T, A) < 0.5, torch.randn(B, H, T, A) - query, size * torch.randn(B, H, T, A))  # sums near zero
    query.requires_grad_(), key.requires_grad_()
    output = attention(query, key, value, projected=True, backend=backend)
    expected = _exact(attention, query, key).softmax(-1) @ value.double()
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-5)
    for found, want in zip(*(torch.autograd.grad(y.square().sum(), (query, key)) for y in (output, expected)), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=2e-5)


@pytest.mark.usefixtures("compiles")
@pytest.mark.parametrize("backend", TILED)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_tiles_drop_the_weights_that_the_reference_drops(backend: str, kv_heads: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("ROWS", 5), ("COLUMNS", 7), ("PAIRS", 5 * 7 * 3)):
        monkeypatch.setattr(blocks, name, number)
    attention = attnkit.attentions.build({"name": "additive", "hidden_dim": A}, head_dim=D, num_heads=H, num_kv_heads=kv_heads).double()
    given = [torch.randn(B, heads, T, D).double().requires_grad_() for heads in (H, kv_heads, kv_heads)]
    bias = torch.randn(H, 1, T).double().requires_grad_()
    leaves = [*given, bias, *attention.parameters()]
    with draws.using(torch.tensor([1, 2])):
        outputs = [
            attention(*given, attn_bias=bias, mask=Mask(causal=True), dropout=0.3, first_query=3, backend=name)
            for name in ("reference", backend)
        ]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-10, atol=1e-10)
    for found, want in zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in outputs[::-1]), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("compiles")
def test_a_failing_compiler_falls_back_to_eager_with_a_warning(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Any, **_: Any) -> Any:
        def call(*args: Any, **how: Any) -> None:
            raise RuntimeError("no such header")

        return call

    monkeypatch.setitem(blocks.scores, "additive_compiled", partial(additive_tiles.AdditivePairs, additive_tiles.CompiledTiles()))
    monkeypatch.setattr(torch, "compile", broken)
    attention = attnkit.attentions.build("additive", head_dim=D, num_heads=H)
    given = torch.randn(3, B, H, T, D)
    with pytest.warns(UserWarning, match="additive attention runs without compilation, which failed: no such header"):
        output = attention(*given, backend="additive_compiled")
    torch.testing.assert_close(output, attention(*given, backend="additive_eager"))


def test_without_a_compiler_auto_chooses_eager_tiles(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered()["additive_compiled"], "has_compiler", False)
    monkeypatch.setattr(additive_compiled, "MIN_NUMBERS", 1)
    monkeypatch.setattr(additive_eager, "MIN_NUMBERS", 1)
    attention, given = attnkit.attentions.build("additive", head_dim=D, num_heads=H), torch.randn(3, B, H, T, D)
    assert torch.equal(attention(*given), attention(*given, backend="additive_eager"))
    with pytest.raises(Refused, match=r"no C\+\+ compiler is installed"):
        attention(*given, backend="additive_compiled")


@pytest.mark.parametrize("backend", ["additive_eager", "reference"])
def test_tiles_store_a_tenth_of_the_references_memory(backend: str, seed: int) -> None:
    length = 256
    attention = attnkit.attentions.build("additive", head_dim=64, num_heads=1)
    given = torch.randn(3, 1, 1, length, 64)
    given.requires_grad_()
    with LargestTensor() as largest:
        attention(*given, backend=backend).sum().backward()
    assert (largest.numel * 10 <= length * length * 64) == (backend == "additive_eager")


@pytest.mark.parametrize(("rows", "tiles"), [(64, 1), (65, 2)])
def test_many_short_rows_share_a_tile(rows: int, tiles: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additive_tiles, "EAGER_NUMBERS", 64 * H * 5 * 7 * A)
    attention = attnkit.attentions.build({"name": "additive", "hidden_dim": A}, head_dim=D, num_heads=H).double()
    given = [torch.randn(rows, H, length, D).double().requires_grad_() for length in (5, 7, 7)]
    found = []
    for backend in ("additive_eager", "reference"):
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:  # a dispatch mode does not look into an operator
            output = attention(*given, backend=backend)
        reciprocals = sum(event.name == "aten::reciprocal_" for event in seen.events() or ())
        assert reciprocals == (tiles if backend == "additive_eager" else 0)
        found.append((output, *torch.autograd.grad(output.square().sum(), [*given, *attention.parameters()])))
    for one, want in zip(*found, strict=True):
        torch.testing.assert_close(one, want, rtol=1e-9, atol=1e-9)
