"""Additive attention never materialises the full tensor of tanh values, B.H.Q.K.A."""

import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import attnkit
from attnkit import draws
from attnkit.attention.additive import Additive
from attnkit.attention.backend import Refused, additive_compiled, additive_eager, additive_loops, additive_tiles, blocks
from attnkit.attention.backend.additive_loops import loops
from attnkit.attention.backend.base import ordered
from attnkit.masks import Mask
from tests.attention.largest import LargestTensor
from tests.test_cpp import compile_for, failing

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


def _exact(attention: Additive, query: Tensor, key: Tensor) -> Tensor:
    """Return the logits in float64 by the equation."""
    hidden = torch.tanh(query.double()[:, :, :, None] + key.double()[:, :, None])
    return (hidden * attention.score_weight.double()[:, None, None]).sum(-1)


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


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a process that has not compiled the loops yet."""
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(blocks.scores, "additive_compiled", partial(additive_tiles.AdditivePairs, additive_compiled.CompiledTiles()))
    loops.cache_clear()
    yield tmp_path / "cache"
    loops.cache_clear()


def test_a_failing_compiler_falls_back_to_eager_with_a_warning(
    seed: int, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", failing(tmp_path))
    attention, given = attnkit.attentions.build("additive", head_dim=D, num_heads=H), torch.randn(3, B, H, T, D)
    with pytest.warns(UserWarning, match="additive attention runs without compilation, which failed: no such header \ufffd"):
        output = attention(*given, backend="additive_compiled")
    assert torch.equal(output, attention(*given, backend="additive_eager"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(*given, backend="additive_compiled")  # only once


@pytest.mark.parametrize("capability", ["DEFAULT", "AVX2", "AVX512"])
@pytest.mark.parametrize(
    ("queries", "keys", "channels", "size"), [(24, 40, 16, 1.0), (1, 1, 1, 1.0), (7, 67, 33, 30.0), (50, 129, 80, 15.0)]
)
def test_loops_are_exact_to_rounding_with_every_instruction_set(
    capability: str, queries: int, keys: int, channels: int, size: float, seed: int, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_for(capability, monkeypatch)
    tiles, eager = additive_compiled.CompiledTiles(), additive_tiles.Tiles()
    query, key = size * torch.randn(3, queries, channels), size * torch.randn(3, keys, channels)
    weight, gradient = torch.randn(3, channels), torch.randn(3, queries, keys)
    q, k = additive_tiles.exponentials(query), additive_tiles.exponentials(key)  # their products reach infinity for large inputs
    found = tiles.logits(q, k, weight, exact=False), *tiles.slopes(q, k, gradient, exact=False)
    exact = (
        eager.logits(q.double(), k.double(), weight.double(), exact=False),
        *eager.slopes(q.double(), k.double(), gradient.double(), exact=False),
    )
    for one, want, terms in zip(found, exact, (channels, keys, queries, keys), strict=True):
        torch.testing.assert_close(one.double(), want, rtol=0, atol=6e-7 * terms)  # each term is at most about 5, with a few roundings
    assert [file.suffix for file in own_cache.iterdir()] == [".so"]


@pytest.mark.parametrize(("heads", "queries"), [(1, 9), (2, 64), (7, 5), (1, 1)])
def test_threads_share_the_heads_or_the_queries(
    heads: int, queries: int, seed: int, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, weight, gradient = torch.rand(heads, queries, A), torch.rand(heads, T, A), torch.randn(heads, A), torch.randn(heads, queries, T)
    tiles, before = additive_compiled.CompiledTiles(), torch.get_num_threads()
    monkeypatch.setattr(additive_loops, "MIN_THREADED", 1)
    found = []
    for threads in (1, 3):
        try:
            torch.set_num_threads(threads)
            among = additive_loops.shares(heads, queries, 1)
            found.append((tiles.logits(q, k, weight, exact=False), *tiles.slopes(q, k, gradient, exact=False)))
        finally:
            torch.set_num_threads(before)
        assert (len(among) > 1) == (threads > 1 and heads + queries > 2)
        assert sum(len(range(heads)[some]) * len(range(queries)[rows]) for some, rows, _ in among) == heads * queries
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5)


def test_nan_is_not_hidden(seed: int) -> None:
    attention = attnkit.attentions.build({"name": "additive", "hidden_dim": A}, head_dim=D, num_heads=H)
    query, key, value = torch.randn(B, H, T, A), 30 * torch.randn(B, H, T, A), torch.randn(B, H, T, D)
    query[1, 0, 3, 2] = torch.nan
    output = attention(query, key, value, projected=True, backend="additive_compiled")
    assert output[1, 0, 3].isnan().all()
    assert output.isnan().sum() == D


def test_without_a_compiler_auto_chooses_eager_tiles(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered()["additive_compiled"], "has_compiler", False)
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
