# https://arxiv.org/abs/2412.05496
"""FlexAttention: biases by offset, softcaps and windows inside a fused kernel, on a GPU."""

import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from attnkit.attention.backend.base import Backend, Inputs
from attnkit.attention.backend.sdpa import refuses_score
from attnkit.attention.base import Attention, InnerProduct
from attnkit.attention.bias import LazyBias
from attnkit.half import HALF
from attnkit.masks import Mask
from attnkit.registry import backends
from attnkit.transforms import traced, transformed

BLOCK = 128
"""Queries and keys in a block, which is skipped where causality or the window masks all its pairs."""

KINDS = 64
"""How many kinds of calls one process compiles, by dtype, sizes of heads, mask, scale and softcap; torch's default is 8."""

WIDTHS = range(16, 257)
"""Widths of queries, keys and values that its kernels take."""

Tiles = tuple[int, int, int]  # queries, keys, stages: how many tiles a loop reads ahead

FULL: dict[int, tuple[Tiles, Tiles]] = {64: ((64, 32, 2), (32, 32, 1)), 128: ((32, 32, 2), (32, 32, 1)), 256: ((32, 32, 1), (16, 16, 1))}
HALF_PRECISION: dict[int, tuple[Tiles, Tiles]] = {
    64: ((128, 128, 2), (64, 128, 2)), 128: ((128, 64, 2), (64, 64, 1)), 256: ((64, 32, 2), (32, 32, 1)),
}  # fmt: skip
"""Tiles of the forward and backward pass with a bias, for heads of up to this many channels. torch's own do not leave room for the bias in
the shared memory of a multiprocessor. Those for 64 were the fastest of five on an H200."""


@backends.register("flex")
class Flex(Backend):
    r"""torch's `flex_attention`, compiled: a fused kernel that adds a bias by offset and bounds scores, for inner products on a GPU.

    A bias that depends only on the offset (ALiBi, relative, KERPLE) is a line of Q + K - 1 numbers per head, from which the kernel reads;
    blocks that causality or a window masks are skipped. `auto` chooses it for symbolic windows and biases, and for softcaps, without
    dropout. The first call of each kind compiles for some seconds. In fp32 it multiplies with three TF32 products, which is exact up to
    rounding. The gradient of a learned bias is summed in varying order, so repeated runs differ by rounding; with
    torch.use_deterministic_algorithms (Lightning's `deterministic: true`), `auto` takes `tiled` instead. Second derivatives need
    `reference`.

    Equation:
        $$\mathrm{attention}(q_i, K, V) = \sum_j \mathrm{softmax}_j(c \tanh(s \, q_i^\top k_j / c) + b_{j - i}) \, v_j$$

    Paper: Dong et al. 2024, https://arxiv.org/abs/2412.05496

    Example:
        >>> import attnkit
        >>> attnkit.attentions.build("dot_product", head_dim=4).check_backend("flex")  # whether a device has it shows at a call
    """

    rank = 27
    options = frozenset({"scale", "softcap"})
    reads_lazy_bias = True

    def __init__(self) -> None:
        self.has_triton = find_spec("triton") is not None

    def refuses_score(self, attention: Attention) -> str | None:
        """Return a reason unless the score is `InnerProduct.score` with a plain number as its scale."""
        return refuses_score(attention)

    def refuses_device(self, device: torch.device) -> str | None:
        """Return a reason if triton is missing, or the device is not a CUDA GPU."""
        if not self.has_triton:
            return "triton is not installed (pip install 'attnkit[triton]')"
        return None if device.type == "cuda" else f"it trains on CUDA only, and the inputs are on {device.type!r}"

    def refuses_inputs(self, attention: Attention, inputs: Inputs) -> str | None:
        """Return a reason if its kernels lack the dtype, the widths, the bias or dropout, or if sums must have a fixed order."""
        query, _, value, _, bias, dropout, _ = inputs
        if dropout > 0:
            return "it has no dropout"
        if query.dtype == torch.float64:
            return "it computes in fp32, and the inputs are in float64"
        if query.shape[-1] not in WIDTHS or value.shape[-1] not in WIDTHS:
            return f"heads must have {WIDTHS.start} to {WIDTHS.stop - 1} channels, but have {query.shape[-1]} and {value.shape[-1]}"
        if bias is not None and not (isinstance(bias, LazyBias) and bias.by_offset):
            return "its bias does not depend on the offset alone"
        if bias is not None and torch.are_deterministic_algorithms_enabled():
            return "the order in which it sums gradients of a bias varies, and torch.use_deterministic_algorithms is on"
        return "it supports neither torch.func, forward mode nor recorded graphs" if transformed() or traced() else None

    def suits(self, attention: Attention, inputs: Inputs) -> bool:
        """Return whether there is a symbolic window or bias, or a softcap with too many pairs for plain products, on a GPU."""
        symbolic = isinstance(inputs.bias, LazyBias) or (inputs.mask is not None and inputs.mask.window is not None)
        is_large = attention.softcap is not None and attention.chunk_size(inputs.query, inputs.key) < inputs.query.shape[-2]
        return inputs.query.is_cuda and (symbolic or is_large)

    def compute(self, attention: Attention, inputs: Inputs) -> Tensor:
        """Return the attention [B, H, Q, Dv]."""
        assert isinstance(attention, InnerProduct)
        query, key, value, mask, bias, _, _ = inputs
        line = None
        if isinstance(bias, LazyBias):
            offsets = torch.arange(1 - query.shape[-2], key.shape[-2], device=query.device)[None]
            line = bias.compute(torch.zeros_like(offsets[:, :1]), offsets)[0, :, 0].T.contiguous()  # [Q + K - 1, H]
        first = torch.full((), query.shape[-2] - 1, device=query.device)  # a tensor, which is not part of the compiled code
        call = (query, key, value, line, first, attention.scale * attention.factor, attention.softcap)
        mask = mask or Mask()
        if torch.compiler.is_compiling() or not query.is_cuda:
            return _attend(*call, block_mask(mask, query, key))
        blocks = block_mask(mask, query, key) if mask.allowed is not None else _cached(mask.causal, mask.window, *_sizes(query, key))
        with torch._dynamo.config.patch(recompile_limit=KINDS, specialize_int=True, specialize_float=True), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at it
            return _compiled()(*call, blocks)


@cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_attend)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, line: Tensor | None, first: Tensor, scale: float, softcap: float | None,
    blocks: BlockMask | None,
) -> Tensor:  # fmt: skip
    """Return the attention [B, H, Q, Dv] with the bias `line` [Q + K - 1, H], in which `first` is the index of offset 0."""

    def modify(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        score = score if softcap is None else softcap * torch.tanh(score / softcap)
        return score if line is None else score + line[k - q + first, head]

    options: Any = {"FLOAT32_PRECISION": "'tf32x3'", **({} if line is None and query.dtype in HALF else _tiles(query, value))}
    output: Tensor = flex_attention(query, key, value, modify, blocks, scale, query.shape[1] != key.shape[1], kernel_options=options)
    return output


def _tiles(query: Tensor, value: Tensor) -> dict[str, int]:
    """Return the sizes of tiles as options of `flex_attention`."""
    table = HALF_PRECISION if query.dtype in HALF else FULL
    width = max(query.shape[-1], value.shape[-1])
    is_large = query.is_cuda and torch.cuda.get_device_capability(query.device) >= (9, 0)
    (rows, columns, stages), (few, many, ahead) = table[min(size for size in table if size >= width) if is_large else max(table)]
    forward = {"fwd_BLOCK_M": rows, "fwd_BLOCK_N": columns, "fwd_num_stages": stages, "fwd_num_warps": 8 if rows * columns > 2**13 else 4}
    backward = {"bwd_BLOCK_M1": few, "bwd_BLOCK_N1": many, "bwd_BLOCK_M2": many, "bwd_BLOCK_N2": few}
    return {**forward, **backward, "bwd_num_stages": ahead, "bwd_num_warps": 8 if few * many > 2**12 else 4}


def block_mask(mask: Mask, query: Tensor, key: Tensor) -> BlockMask | None:
    """Return the mask for `flex_attention`, with the blocks to compute, or None if it allows everything."""
    if mask.allowed is None:
        return _masked(mask, None, *_sizes(query, key))
    sizes = (*query.shape[:3], key.shape[-2])
    return _masked(mask, mask.allowed.expand(sizes), *_sizes(query, key))


@lru_cache(maxsize=32)
def _cached(causal: bool, window: int | None, queries: int, keys: int, device: torch.device) -> BlockMask | None:
    return _masked(Mask(causal=causal, window=window), None, queries, keys, device)


def _sizes(query: Tensor, key: Tensor) -> tuple[int, int, torch.device]:
    return query.shape[-2], key.shape[-2], query.device


def _masked(mask: Mask, allowed: Tensor | None, queries: int, keys: int, device: torch.device) -> BlockMask | None:
    if allowed is None and mask.window is None and not mask.causal:
        return None

    def allow(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        near = mask.near(k - q)
        if allowed is None or near is None:
            return near if allowed is None else allowed[b, h, q, k]  # type: ignore[return-value]  # one of them is a tensor
        return near & allowed[b, h, q, k]

    some, every = blocks(mask, queries, keys, device)
    every = every if allowed is None else torch.zeros_like(every)
    return BlockMask.from_kv_blocks(*_listed(some & ~every), *_listed(every), BLOCK, allow, (queries, keys))


def blocks(mask: Mask, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return in which blocks [rows, columns] causality and the window allow some pair, and in which whole ones they allow every pair."""
    rows, columns = (torch.arange(-(-count // BLOCK), device=device) for count in (queries, keys))
    offsets = (columns - rows[:, None]) * BLOCK  # of the first key from the first query
    reach = BLOCK - 1  # offsets of other pairs differ by up to this
    some, first, last = (mask.near(x) for x in (offsets - offsets.clamp(-reach, reach), offsets - reach, offsets + reach))
    if some is None or first is None or last is None:  # together: nothing but `mask.allowed`
        some = first = last = torch.ones_like(offsets, dtype=torch.bool)
    whole = (rows < queries // BLOCK)[:, None] & (columns < keys // BLOCK)
    return some, first & last & whole


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks are chosen in each row [1, 1, rows], and their columns, followed by the others [1, 1, rows, columns]."""
    order = torch.argsort(chosen.int(), dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32)[None, None], order.int()[None, None]
