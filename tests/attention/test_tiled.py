"""Windows and biases that stay symbolic give what the whole tensors give, without any tensor of all queries and keys."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit.attention import FiniteBias, LazyBias
from attnkit.attention.backend import blocks, tiled
from attnkit.layers import reading
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
        outputs = ((model(x, **given), given.get("key_mask", right | True)) for given in options)
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
    assert 0 < largest.numel <= H * tiled.TILE_QUERIES * length < length * length // 4  # the last is a boolean matrix


def test_keys_of_other_documents_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(tiled.F, "scaled_dot_product_attention", lambda q, k, v, **how: seen.append(k.shape[-2]) or fused(q, k, v, **how))
    x, runs = torch.randn(2, H, 40, D), torch.stack([torch.arange(40) // 10, torch.arange(40) // 5])
    attention = attnkit.attentions.build("scaled_dot_product", head_dim=D, num_heads=H)
    for mask in (Mask(causal=True, runs=runs), Mask(runs=runs)):
        attention(x, x, x, mask=mask)
        assert seen == ([5, 10] * 4 if mask.causal else [10] * 8)
        seen.clear()
