"""Biases added to the logits, made safe for every backend."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnkit import masks
from attnkit.attention.decay import DecayBias
from attnkit.masks import Mask


@dataclass(frozen=True)
class FiniteBias:
    """A bias that is finite by construction, such as that of a position encoding, so it is not searched for -inf."""

    values: Tensor  # broadcasts to [B, H, Q, K], with at least two dimensions


@dataclass(frozen=True)
class LazyBias:
    """A finite bias between positions, computed on demand: a backend may take it tile by tile."""

    compute: Callable[[Tensor, Tensor], Tensor]  # from positions of queries [B or 1, Q] and keys [B or 1, K] to the bias [B or 1, H, Q, K]
    query_positions: Tensor  # [B or 1, Q]
    key_positions: Tensor  # [B or 1, K]
    by_offset: bool = False  # whether the bias depends only on the key's index minus the query's

    @property
    def values(self) -> Tensor:
        """The whole bias, [B or 1, H, Q, K]."""
        return self.compute(self.query_positions, self.key_positions)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the bias."""
        return self.tile(slice(1), slice(1)).dtype

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """Return the bias of some queries and keys."""
        return self.compute(self.query_positions[:, rows], self.key_positions[:, columns])

    def line(self, offsets: Tensor) -> Tensor:
        """Return the bias of offsets [N], the key's index minus the query's, [1, H, 1, N]; only if it is `by_offset`."""
        return self.compute(torch.zeros_like(offsets[None, :1]), offsets[None])


def prepare(
    mask: Mask | Tensor | None,
    bias: FiniteBias | LazyBias | DecayBias | Tensor | None,
    query: Tensor,
    key: Tensor,
    *,
    dtype: torch.dtype | None = None,
) -> tuple[Mask | None, Tensor | None]:
    """Return a mask and a finite bias that together are equivalent to `mask` and `bias`, which broadcast to [B, H, Q, K].

    A backend may convert the bias to `dtype`. A bias of a wider dtype is shifted row by row so that its largest unmasked number is zero:
    this changes no weight and keeps the bias in range.

    A key whose bias is -inf is masked, so a row without any other key gives zeros. +inf and NaN are not checked.

    Example:
        >>> query, key = torch.ones(1, 1, 1, 4), torch.ones(1, 1, 2, 4)
        >>> mask, bias = prepare(None, torch.tensor([[0.5, float("-inf")]]), query, key)
        >>> mask.allowed, bias
        (tensor([[ True, False]]), tensor([[0.5000, 0.0000]]))
    """
    mask = Mask.of(mask) if isinstance(mask, Tensor) else mask
    if bias is None or isinstance(bias, FiniteBias | LazyBias | DecayBias):
        return mask, None if bias is None else bias.values
    if bias.dtype == torch.bool:
        raise TypeError("attn_bias is added to the logits and must be numeric, but is boolean; pass a boolean mask as `mask`")
    bias = bias.reshape(*[1] * (2 - bias.dim()), *bias.shape)  # a bias [K] applies to every query
    hidden = bias == float("-inf")
    bias = bias.masked_fill(hidden, 0.0)
    restriction = (None, None) if mask is None else (mask.dense(query.shape[-2], key.shape[-2], bias.device), mask.alive)
    combined = Mask.of(masks.combine(~hidden, *restriction))
    assert combined is not None
    assert combined.allowed is not None
    if dtype is not None and bias.is_floating_point() and torch.finfo(bias.dtype).max > torch.finfo(dtype).max:
        largest = bias.detach().masked_fill(~combined.allowed, float("-inf")).amax(-1, keepdim=True)
        bias = (bias - largest).clamp(min=torch.finfo(dtype).min)
    return combined, bias
