"""Windows and biases that stay symbolic give what the whole tensors give, without any tensor of all queries and keys."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit.attention import FiniteBias, LazyBias
from attnkit.attention.backend import blocks, tiled
from attnkit.layers import reading, transformer
from attnkit.masks import Mask
from tests.attention.largest import LargestTensor

B, H, T, D = 2, 2, 23, 4
POSITIONS = ("alibi", "relative", "kerple", "fire")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Tiles and blocks of five queries."""
    monkeypatch.setattr(tiled, "TILE_QUERIES", 5)
    for name, number in (("ROWS", 5), ("COLUMNS", 7), ("PAIRS", 5 * 7)):
        monkeypatch.setattr(blocks, name, number)


@pytest.mark.parametrize("name", ["none", *POSITIONS])
@pytest.mark.parametrize("mask", [None, Mask(causal=True), Mask(window=4), Mask(causal=True, window=4), Mask(causal=True, window=99)])
def test_a_symbolic_window_and_bias_agree_with_the_reference(name: str, mask: Mask | None) -> None:
    position = attnkit.positions.build(name, d_model=H * D, head_dim=D, num_heads=H, bidirectional=not (mask and mask.causal)).double()
    attention = attnkit.attentions.build("scaled_dot_product", head_dim=D, num_heads=H).double()
    given = torch.randn(3, B, H, T, D).double().requires_grad_()
    t = torch.arange(T)[None]
    whole = position.bias(t, t)
    biases = [None] if whole is None else [LazyBias(position.bias, t, t, False), LazyBias(position.bias, t, t, position.by_offset)]
    leaves = [given, *position.parameters()]
    dense = None if mask is None else mask.dense(T, T, torch.device("cpu"))
    expected = attention(*given, mask=dense, attn_bias=None if whole is None else FiniteBias(whole), backend="reference")
    wanted = torch.autograd.grad(expected.square().sum(), leaves)
    for bias in biases:
        for backend in ("blockwise", "tiled", "sdpa", "chunked", "reference"):
            output = attention(*given, mask=mask, attn_bias=bias, backend=backend)
            torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)
            for found, want in zip(torch.autograd.grad(output.square().sum(), leaves), wanted, strict=True):
                torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mask", [Mask(causal=True), Mask(window=4), Mask(causal=True, window=4)])
@pytest.mark.parametrize("name", ["none", "alibi"])
def test_tiles_may_be_longer_than_windows(name: str, mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "_queries", lambda *_: 16)
    test_a_symbolic_window_and_bias_agree_with_the_reference(name, mask)


def test_a_gpu_uses_larger_tiles_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def size(rows: int, keys: int, window: int | None) -> int:
        return tiled._queries(cast(Tensor, SimpleNamespace(is_cuda=True, shape=(rows, 4, keys, 64))), keys, window)

    monkeypatch.setattr(tiled, "TILE_QUERIES", 128)
    assert [size(1, 6000, None), size(1, 8192, 256), size(64, 8192, None)] == [2048, 1024, 128]
    assert all(rows * 4 * size(rows, keys, None) * keys <= tiled.TILE_ON_GPU for rows in (1, 3, 8) for keys in (1024, 6000, 16384))


@pytest.mark.parametrize("name", ["alibi", "relative"])
@pytest.mark.parametrize("backend", ["blockwise", "tiled"])
def test_no_tensor_of_all_queries_and_keys_is_created(name: str, backend: str) -> None:
    length = 60
    position = attnkit.positions.build(name, head_dim=D, num_heads=H, bidirectional=False)
    attention = attnkit.attentions.build("scaled_dot_product", head_dim=D, num_heads=H)
    given, t = torch.randn(3, 1, H, length, D).requires_grad_(), torch.arange(length)[None]
    bias = LazyBias(position.bias, t, t, position.by_offset)
    with LargestTensor() as largest:
        attention(*given, mask=Mask(causal=True), attn_bias=bias, backend=backend).sum().backward()
    assert 0 < largest.numel <= max(given.numel(), 10 * H * length)
    with LargestTensor() as largest:
        attention(*given, mask=Mask(causal=True), attn_bias=bias, backend="sdpa")
    assert largest.numel >= H * length * length  # the measurement works


def test_a_window_reads_no_key_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(tiled.F, "scaled_dot_product_attention", lambda q, k, v, **how: seen.append(k.shape[-2]) or fused(q, k, v, **how))
    x = torch.randn(1, H, 100, D)
    attnkit.attentions.build("scaled_dot_product", head_dim=D, num_heads=H)(x, x, x, mask=Mask(causal=True, window=3))
    assert len(seen) == 20
    assert max(seen) == 10  # the block of the queries, and the one before


@pytest.mark.parametrize("name", ["none", *POSITIONS, "cope"])
@pytest.mark.parametrize("stack", ["decoder", "encoder"])
@pytest.mark.parametrize("window", [None, 6])
def test_a_stack_gives_the_same_with_symbolic_masks_and_biases(
    name: str, stack: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"name": stack, "d_model": 8, "num_layers": 2, "num_heads": H, "position": name, "window": window}
    if name == "cope" and stack == "encoder":
        pytest.skip("cope is causal")
    model = attnkit.stacks.build(spec).double().eval()
    x, right, left, both, inside = torch.randn(B, T, 8).double(), *torch.ones(4, B, T, dtype=torch.bool)
    right[1, -4:] = left[1, :3] = both[1, :2] = both[1, -1:] = inside[1, 5:7] = False
    documents = torch.arange(T).expand(B, -1) // torch.tensor([[5], [7]])  # of other lengths in each row
    options: list[dict[str, Tensor]] = [{}, *({"key_mask": mask} for mask in (right, left, both, inside))]
    if stack == "decoder":
        options += [{"documents": documents}, {"documents": documents, "key_mask": both}]

    def run() -> list[Tensor]:  # outputs at padding, which nothing reads, may differ
        outputs = ((model(x, **given), given.get("key_mask", torch.ones_like(right))) for given in options)
        return [(y[0] if isinstance(y, tuple) else y)[real] for y, real in outputs]

    expected = run()
    monkeypatch.setattr(reading, "LONG", 4)
    for found, want in zip(run(), expected, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("position", ["none", "alibi", "relative", "rotary"])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("padding", ["documents", "key_mask"])
def test_documents_and_padding_of_long_rows_make_no_matrix(
    position: str, window: int | None, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, number in ((reading, "LONG", 64), (tiled, "TILE_QUERIES", 32), (blocks, "ROWS", 32), (blocks, "COLUMNS", 32)):
        monkeypatch.setattr(module, name, number)
    spec = {
        "name": "decoder",
        "d_model": 8,
        "num_layers": 1,
        "num_heads": H,
        "position": position,
        "window": window,
        "feed_forward": "none",
    }
    model, length = attnkit.stacks.build(spec), 320
    x, t = torch.randn(1, length, 8), torch.arange(length)[None]
    given = {"documents": t // 100} if padding == "documents" else {"key_mask": t < length - 30}
    with LargestTensor() as largest:
        model(x, **given)[0].sum().backward()
    assert 0 < largest.numel <= H * tiled.TILE_QUERIES * length < length * length // 4  # in float32 numbers, a boolean matrix of all pairs


def test_keys_of_other_documents_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(tiled.F, "scaled_dot_product_attention", lambda q, k, v, **how: seen.append(k.shape[-2]) or fused(q, k, v, **how))
    x, stretches = torch.randn(2, H, 40, D), torch.stack([torch.arange(40) // 10, torch.arange(40) // 5])
    attention = attnkit.attentions.build("scaled_dot_product", head_dim=D, num_heads=H)
    for mask in (Mask(causal=True, stretches=stretches), Mask(stretches=stretches)):
        attention(x, x, x, mask=mask)
        assert seen == ([5, 10] * 4 if mask.causal else [10] * 8)
        seen.clear()


@pytest.mark.parametrize("real", [None, [True] * 6 + [False], [True, True, False, True, True, True, True]])
def test_documents_that_return_are_new_ones_in_short_and_long_rows(real: list[bool] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = attnkit.stacks.build({"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": H}).double().eval()
    x, returning, numbered = torch.randn(1, 7, 8).double(), torch.tensor([[7, 7, 9, 9, 7, 7, 7]]), torch.tensor([[0, 0, 1, 1, 2, 2, 2]])
    mask = None if real is None else torch.tensor([real])
    where = torch.ones(1, 7, dtype=torch.bool) if mask is None else mask
    expected = model(x, documents=numbered, key_mask=mask)[0][where]
    for long in (1024, 4):
        monkeypatch.setattr(reading, "LONG", long)
        torch.testing.assert_close(model(x, documents=returning, key_mask=mask)[0][where], expected, rtol=1e-10, atol=1e-10)


def test_documents_of_another_shape_are_refused() -> None:
    model = attnkit.stacks.build({"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": H})
    with pytest.raises(ValueError, match=r"documents must have shape \[2, 5\]"):
        model(torch.randn(2, 5, 8), documents=torch.zeros(1, 5, dtype=torch.long))


@pytest.mark.parametrize("backend", ["blockwise", "tiled"])
def test_numbers_of_one_row_and_in_any_order_hold_for_all_rows(backend: str) -> None:
    attention, x = attnkit.attentions.build("scaled_dot_product", head_dim=D, num_heads=H).double(), torch.randn(3, H, T, D).double()
    for stretches in (torch.arange(T)[None] // 8, -torch.arange(T)[None] // 8):
        mask = Mask(causal=True, stretches=stretches)
        found, expected = (attention(x, x, x, mask=mask, backend=name) for name in (backend, "reference"))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_padding_of_long_rows_needs_no_number_where_none_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONG", 4)
    model = attnkit.stacks.build(
        {"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": H, "window": 3, "backend": "reference"}
    ).eval()
    x, real = torch.randn(2, 3, 6, 8), torch.arange(6) < torch.tensor([[[6], [4], [5]], [[2], [6], [6]]])
    found = torch.func.vmap(lambda x, real: model(x, key_mask=real)[0])(x, real)
    for one, mask, wanted in zip(x, real, found, strict=True):
        torch.testing.assert_close(model(one, key_mask=mask)[0][mask], wanted[mask], rtol=1e-5, atol=1e-5)


def test_a_compiled_model_keeps_its_window_symbolic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONG", 4)
    seen: list[Mask | None] = []
    model = attnkit.stacks.build({"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": H, "window": 3})
    between = reading.mask_between
    monkeypatch.setattr(transformer, "mask_between", lambda *a, **k: seen.append(mask := between(*a, **k)) or mask)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    model(torch.randn(1, 6, 8))
    assert [mask and mask.window for mask in seen] == [3]
