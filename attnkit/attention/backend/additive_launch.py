"""The operators of `additive_triton`, which prepare the arguments of its kernels and launch them."""

from typing import Any

import torch
from torch import Tensor

from attnkit.attention.backend.additive_tiles import crossing, exponentials
from attnkit.attention.backend.online import differentiate
from attnkit.attention.backend.reference import MOST_HEADS
from attnkit.draws import bases
from attnkit.dropout import lowest_kept

FORWARD, BACKWARD = (32, 64, 4), (32, 32, 2)
"""Queries and keys in a tile, and warps that compute it: of twelve sizes the fastest on an H200 up to 1 %, at T = 2048 with 64
channels."""


@torch.library.custom_op("attnkit::additive_triton", mutates_args=())
def attend(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, allowed: Tensor | None,
    examples: Tensor | None, by_offset: bool, causal: bool, window: int, scale: float, dropout: float, numbers: list[int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the attention [B, H, Q, Dv], with weights not scaled for dropout, and what `online` keeps of each row, [B H, Q, 2].

    The arguments are those of `attnkit::blockwise`.
    """
    call = _Call(query, key, value, weight, bias, allowed, examples, by_offset, causal, window, scale, dropout, numbers)
    output = value.new_empty(*query.shape[:3], value.shape[-1])
    sums = call.query.new_empty(call.query.shape[0], query.shape[2], 2)
    call.launch("forward", output, sums)
    return output, sums


@torch.library.custom_op("attnkit::additive_triton_backward", mutates_args=())
def _attend_backward(
    gradient: Tensor, output: Tensor, sums: Tensor, needs_bias: bool,
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, allowed: Tensor | None,
    examples: Tensor | None, by_offset: bool, causal: bool, window: int, scale: float, dropout: float, numbers: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of queries, keys, values, weights and the bias; an empty one if the bias needs none."""
    call = _Call(query, key, value, weight, bias, allowed, examples, by_offset, causal, window, scale, dropout, numbers)
    dtype, device = call.query.dtype, query.device
    inner = (gradient.to(dtype) * output.to(dtype)).sum(-1)
    d_query, d_key, d_value = (torch.zeros_like(x, dtype=dtype) for x in (call.query, call.key, call.value))
    d_weight = torch.zeros(len(query), *weight.shape, dtype=dtype, device=device)
    d_bias = None if bias is None or not needs_bias else torch.zeros(bias.shape, dtype=dtype, device=device)
    call.launch("backward", sums, inner, gradient.contiguous(), d_query, d_key, d_value, d_weight, *call.placed(d_bias))
    return (
        d_query.mul_(-2).mT.reshape(query.shape).to(query.dtype),  # dr/dx = -2 r (1 - r)
        d_key.mul_(-2).mT.reshape(key.shape).to(key.dtype),
        d_value.to(value.dtype),
        d_weight.sum(0).mul_(-2 * scale).to(weight.dtype),
        sums.new_empty(0) if bias is None or d_bias is None else d_bias.to(bias.dtype),
    )


names = torch.ops.attnkit
differentiate(attend, _attend_backward, (names.additive_triton, names.additive_triton_backward))


class _Call:
    """The kernels' arguments, made from those of the operators."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, allowed: Tensor | None,
        examples: Tensor | None, by_offset: bool, causal: bool, window: int, scale: float, dropout: float, numbers: list[int],
    ) -> None:  # fmt: skip
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        (batch, heads, self.queries, channels), (kv_heads, self.keys), width = query.shape, key.shape[1:3], value.shape[-1]
        query, key = (x.to(dtype).reshape(batch * kv_heads, -1, channels) for x in (query, key))
        exact = crossing(query, key)  # by key head
        query, key = (x.where(exact[:, None, None], exponentials(x)) for x in (query, key))
        self.query = query.reshape(batch * heads, self.queries, channels).mT.contiguous()
        self.key, self.value = key.mT.contiguous(), value.contiguous()
        self.by_offset = by_offset
        weights = weight.to(dtype) * (-2 * scale)  # the factor of a ratio in a logit
        self.tensors = (self.query, self.key, self.value, weights, exact.int(), *self.placed(bias), allowed, _steps(allowed))
        self.drawn = None
        if examples is not None:
            first_head, site, first_query = numbers
            head, row = (torch.arange(n, device=query.device) for n in (heads, self.queries))
            self.drawn = bases(examples, site, (first_query + row) * MOST_HEADS + (first_head + head)[:, None])  # [B, H, Q]
        lowest = 1 - window if window else 1 - self.queries
        highest = 0 if causal else window - 1 if window else self.keys - 1
        self.sizes = (heads, heads // kv_heads, self.queries, self.keys, width, lowest, highest, lowest_kept(dropout))
        self.constants = {
            "CHANNELS": channels,
            "WIDTH": max(16, 1 << (width - 1).bit_length()),
        }

    def placed(self, bias: Tensor | None) -> tuple[Tensor | None, tuple[int, ...]]:
        """Return the bias from that of the first pair on, and its strides."""
        if bias is None or not self.by_offset:
            return bias, _steps(bias)
        batch, head, _, one = _steps(bias)
        return bias[..., self.queries - 1 :], (batch, head, -one, one)

    def launch(self, name: str, *others: Any) -> None:
        """Run a kernel for each head and tile: of queries in the forward pass, of keys in the backward pass."""
        from attnkit.attention.backend import additive_kernels  # needs triton

        is_forward = name == "forward"
        rows, columns, warps = FORWARD if is_forward else BACKWARD
        tiles = -(-self.queries // rows) if is_forward else -(-self.keys // columns)
        constants = {**self.constants, "ROWS": rows, "COLUMNS": columns, "num_warps": warps}
        with torch.cuda.device_of(self.query):  # type: ignore[no-untyped-call]
            getattr(additive_kernels, name)[len(self.query), tiles](*self.tensors, self.drawn, *others, *self.sizes, **constants)


def _steps(x: Tensor | None) -> tuple[int, ...]:
    """Return the strides of a tensor that broadcasts to [B, H, Q, K]."""
    if x is None:
        return (0, 0, 0, 0)
    return *[0] * (4 - x.dim()), *(0 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True))
