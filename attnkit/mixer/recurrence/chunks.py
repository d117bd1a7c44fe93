"""Cutting the time axis into chunks."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.transforms import transformed

CHUNK = 32
"""Tokens in a chunk, a power of two: pairs of tokens within a chunk are compared, and a scan over states connects the chunks."""
WHOLE = 128  # rows of at most this many tokens are one chunk


def in_chunks(*tensors: Tensor, powers: bool = False) -> tuple[Tensor, ...]:
    """Cut [B, H, T, ...] into [B, H, chunks, C, ...], padded with zeros, that is, with decays of one and empty writes.

    A short row becomes one chunk of its own length, unless `powers` requires C to be a power of two.

    Example:
        >>> [tuple(x.shape) for x in in_chunks(torch.ones(1, 2, 300, 8), torch.ones(1, 2, 300, 1))]
        [(1, 2, 10, 32, 8), (1, 2, 10, 32, 1)]
        >>> in_chunks(torch.ones(1, 2, 100, 8))[0].shape
        torch.Size([1, 2, 1, 100, 8])
    """
    length = tensors[0].shape[2]
    if length <= WHOLE and not powers:
        return tuple(x[:, :, None] for x in tensors)
    size = 16 if length <= WHOLE else CHUNK
    cut = _padded if transformed() else _cut
    return tuple(cut(x, size) for x in tensors)


def joined(x: Tensor, length: int) -> Tensor:
    """Join chunks [B, H, chunks, C, ...] into [B, H, T, ...]: the inverse of `in_chunks`."""
    if x.shape[2] == 1 and x.shape[3] == length:
        return x[:, :, 0]
    return _shortened(x, length) if transformed() else _join(x, length)


def _padded(x: Tensor, size: int) -> Tensor:
    return torch.unflatten(F.pad(x, (0, 0, 0, -x.shape[2] % size)), 2, (-1, size))


def _shortened(x: Tensor, length: int) -> Tensor:
    return x.flatten(2, 3)[:, :, :length]


# Custom operators, because torch.compile would spend minutes reasoning about which lengths are multiples of a chunk.
@torch.library.custom_op("attnkit::cut", mutates_args=())
def _cut(x: Tensor, size: int) -> Tensor:
    return _padded(x, size).clone(memory_format=torch.contiguous_format)


@torch.library.custom_op("attnkit::join", mutates_args=())
def _join(x: Tensor, length: int) -> Tensor:
    return _shortened(x, length).clone(memory_format=torch.contiguous_format)


@_cut.register_fake
def _(x: Tensor, size: int) -> Tensor:
    return x.new_empty(*x.shape[:2], (x.shape[2] + size - 1) // size, size, *x.shape[3:])


@_join.register_fake
def _(x: Tensor, length: int) -> Tensor:
    return x.new_empty(*x.shape[:2], length, *x.shape[4:])


def _keep_length(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.length = inputs[0].shape[2]


def _keep_size(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.size = inputs[0].shape[3]


_cut.register_autograd(lambda ctx, grad: (_join(grad, ctx.length), None), setup_context=_keep_length)
_join.register_autograd(lambda ctx, grad: (_cut(grad, ctx.size), None), setup_context=_keep_size)
