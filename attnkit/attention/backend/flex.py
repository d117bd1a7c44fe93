# https://arxiv.org/abs/2412.05496
"""FlexAttention: biases by offset, softcaps and windows in a fused kernel, on a GPU."""

import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from attnkit.attention.backend.base import Inputs, is_symbolic
from attnkit.attention.backend.flex_mask import block_mask
from attnkit.attention.backend.sdpa import FusedBackend
from attnkit.attention.base import Attention, InnerProduct
from attnkit.attention.bias import LazyBias
from attnkit.half import HALF
from attnkit.masks import Mask
from attnkit.registry import backends
from attnkit.transforms import observed, traced, transformed

KINDS = 64
"""How many kinds of calls (by dtype, head sizes, mask, scale and softcap) one process compiles; torch's default is 8."""

WIDTHS = range(16, 257)
"""The widths of queries, keys and values that its kernels support."""

Tiles = tuple[int, int, int]  # queries, keys, stages: how many tiles a loop reads ahead

FULL: dict[int, tuple[Tiles, Tiles]] = {64: ((64, 32, 2), (32, 32, 1)), 128: ((32, 32, 2), (32, 32, 1)), 256: ((32, 32, 1), (16, 16, 1))}
HALF_PRECISION: dict[int, tuple[Tiles, Tiles]] = {
    64: ((128, 128, 2), (64, 128, 2)), 128: ((128, 64, 2), (64, 64, 1)), 256: ((64, 32, 2), (32, 32, 1)),
}  # fmt: skip
"""Tiles of the forward and backward pass with a bias or in fp32, for heads of up to this many channels. torch's own leave no room for the
bias in the shared memory of a multiprocessor. Those for 64 were the fastest of five on an H200."""


@backends.register("flex")
class Flex(FusedBackend):
    r"""torch's `flex_attention`, compiled: a fused kernel that adds a bias by offset and bounds scores, for inner products on a GPU.

    A bias that depends only on the offset (ALiBi, relative, KERPLE) is a line of Q + K - 1 numbers per head, from which the kernel reads;
    blocks that causality or a window masks are skipped. `auto` chooses it for symbolic windows and biases, and for softcaps, without
    dropout. The first call of each kind compiles for some seconds. In fp32 it multiplies with three TF32 products, which is exact up to
    rounding. The gradient of a learned bias is summed in varying order, so repeated runs differ by rounding; with
    torch.use_deterministic_algorithms (Lightning's `deterministic: true`), `auto` takes `tiled` instead. In a compiled model, it is
    compiled separately, which breaks the model's graph: `fullgraph=True` needs the backend `tiled`. Second derivatives need `reference`.

    Equation:
        $$\mathrm{attention}(q_i, K, V) = \sum_j \mathrm{softmax}_j(c \tanh(s \, q_i^\top k_j / c) + b_{j - i}) \, v_j$$

    Paper: Dong et al. 2024, https://arxiv.org/abs/2412.05496

    Example:
        >>> import attnkit
        >>> attnkit.attentions.build("dot_product", head_dim=4).check_backend("flex")  # the device is checked at a call
    """

    rank = 27
    options = frozenset({"scale", "softcap"})
    reads_lazy_bias = True

    def __init__(self) -> None:
        self.has_triton = find_spec("triton") is not None

    def refuses_device(self, device: torch.device) -> str | None:
        """Return a reason if triton is missing, or the device is not a CUDA GPU."""
        if not self.has_triton:
            return "triton is not installed (pip install 'attnkit[triton]')"
        return None if device.type == "cuda" else f"it trains on CUDA only, and the inputs are on {device.type!r}"

    def refuses_inputs(self, attention: Attention, inputs: Inputs) -> str | None:
        """Return a reason if its kernels do not support the dtype, the widths, the bias or dropout, or if sums must have a fixed order."""
        query, _, value, _, bias, dropout, _ = inputs
        if dropout > 0:
            return "it does not support dropout"
        if query.dtype == torch.float64:
            return "it computes in fp32, and the inputs are in float64"
        widths = query.shape[-1], value.shape[-1]  # compared, because `in` fails in torch 2.11 where they are symbols
        if min(widths) < WIDTHS.start or max(widths) >= WIDTHS.stop:
            return f"heads must have {WIDTHS.start} to {WIDTHS.stop - 1} channels, but have {query.shape[-1]} and {value.shape[-1]}"
        if bias is not None and not (isinstance(bias, LazyBias) and bias.by_offset):
            return "its bias does not depend only on the offset"
        if bias is not None and torch.are_deterministic_algorithms_enabled():
            return "the order of its gradient sums varies, and torch.use_deterministic_algorithms is on"
        if transformed() or traced() or observed():
            return "it supports neither torch.func, forward mode, recorded graphs nor dispatch modes, such as torch's FlopCounterMode"
        return None

    def suits(self, attention: Attention, inputs: Inputs) -> bool:
        """Return whether there is a symbolic window or bias, or a softcap with too many pairs for plain products, on a GPU.

        Not with documents or padding, which have not been measured there.
        """
        is_large = attention.softcap is not None and attention.chunk_size(inputs.query, inputs.key) < inputs.query.shape[-2]
        is_divided = inputs.mask is not None and inputs.mask.stretches is not None
        return inputs.query.is_cuda and not is_divided and (is_symbolic(inputs) or is_large)

    def compute(self, attention: Attention, inputs: Inputs) -> Tensor:
        """Return the attention [B, H, Q, Dv]."""
        assert isinstance(attention, InnerProduct)
        query, key, value, mask, bias, _, _ = inputs
        line = None
        if isinstance(bias, LazyBias):
            offsets = torch.arange(1 - query.shape[-2], key.shape[-2], device=query.device)
            line = bias.line(offsets)[0, :, 0].contiguous()  # [H, Q + K - 1], so that neighbouring pairs read neighbouring numbers
        output: Tensor = _call(query, key, value, line, mask or Mask(), attention.scale * attention.factor, attention.softcap)
        return output


@torch.compiler.disable(reason="the attention backend flex is compiled separately; fullgraph=True needs the backend tiled")  # type: ignore[untyped-decorator, no-untyped-call]
def _call(query: Tensor, key: Tensor, value: Tensor, line: Tensor | None, mask: Mask, scale: float, softcap: float | None) -> Tensor:
    """Return the attention [B, H, Q, Dv] with the bias `line` [H, Q + K - 1]."""
    first = torch.full((), query.shape[-2] - 1, device=query.device)  # a tensor, so that it is not part of the compiled code
    blocks = block_mask(mask, query, key)
    if not query.is_cuda:
        return _attend(query, key, value, line, first, scale, softcap, blocks)
    with torch._dynamo.config.patch(recompile_limit=KINDS, specialize_int=True, specialize_float=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at it
        return _compiled()(query, key, value, line, first, scale, softcap, blocks)


@cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_attend)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, line: Tensor | None, first: Tensor, scale: float, softcap: float | None,
    blocks: BlockMask | None,
) -> Tensor:  # fmt: skip
    """Return the attention [B, H, Q, Dv] with the bias `line` [H, Q + K - 1], in which `first` is the index of offset 0."""

    def modify(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        score = score if softcap is None else softcap * torch.tanh(score / softcap)
        return score if line is None else score + line[head, k - q + first]

    options: Any = {"FLOAT32_PRECISION": "'tf32x3'", **({} if line is None and query.dtype in HALF else _tiles(query, value))}
    output: Tensor = flex_attention(query, key, value, modify, blocks, scale, query.shape[1] != key.shape[1], kernel_options=options)
    return output


def _tiles(query: Tensor, value: Tensor) -> dict[str, int]:
    table = HALF_PRECISION if query.dtype in HALF else FULL
    width = max(query.shape[-1], value.shape[-1])
    is_large = query.is_cuda and torch.cuda.get_device_capability(query.device) >= (9, 0)
    (rows, columns, stages), (few, many, ahead) = table[min(size for size in table if size >= width) if is_large else max(table)]
    forward = {"fwd_BLOCK_M": rows, "fwd_BLOCK_N": columns, "fwd_num_stages": stages, "fwd_num_warps": 8 if rows * columns > 2**13 else 4}
    backward = {"bwd_BLOCK_M1": few, "bwd_BLOCK_N1": many, "bwd_BLOCK_M2": many, "bwd_BLOCK_N2": few}
    return {**forward, **backward, "bwd_num_stages": ahead, "bwd_num_warps": 8 if few * many > 2**12 else 4}
