"""Attention masks: boolean, and True always means "may attend" or "is a real token".

The functions return tensors that broadcast to [B, H, Q, K] and combine with `combine`. `Mask` wraps the result for the
attention kernels: it neutralises rows that may attend nothing, which would otherwise be NaN after the softmax.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


def key(key_mask: Tensor) -> Tensor:
    """Let every query attend the real keys.

    Args:
        key_mask: [B, K] bool, True = real token.

    Returns:
        [B, 1, 1, K] bool.
    """
    check_bool(key_mask, "key_mask")
    return key_mask[:, None, None, :]


def causal(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Let a query attend the keys at its own and earlier positions (absolute positions, so right with a cache too).

    Args:
        query_positions: [B, Q] or [1, Q] integers.
        key_positions: [B, K] or [1, K] integers.

    Returns:
        [B, 1, Q, K] bool.

    Example:
        >>> causal(torch.tensor([[2, 3]]), torch.arange(4)[None])[0, 0].int()
        tensor([[1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)
    """
    return (key_positions[:, None, :] <= query_positions[:, :, None])[:, None]


def sliding_window(query_positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    """Let a query attend the keys fewer than `window` positions away, on both sides (combine with `causal` for one side).

    Args:
        query_positions: [B, Q] or [1, Q] integers.
        key_positions: [B, K] or [1, K] integers.
        window: Keys seen on one side, the query's own position included; at least 1.

    Returns:
        [B, 1, Q, K] bool.

    Example:
        >>> t = torch.arange(4)[None]
        >>> combine(causal(t, t), sliding_window(t, t, window=2))[0, 0].int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, but is {window}")
    return ((query_positions[:, :, None] - key_positions[:, None, :]).abs() < window)[:, None]


def document(query_documents: Tensor, key_documents: Tensor) -> Tensor:
    """Let a query attend the keys of its own document, in rows that pack several.

    Args:
        query_documents: [B, Q] integers, the document of each query.
        key_documents: [B, K] integers.

    Returns:
        [B, 1, Q, K] bool.

    Example:
        >>> packed = torch.tensor([[7, 7, 9]])
        >>> document(packed, packed)[0, 0].int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    return (query_documents[:, :, None] == key_documents[:, None, :])[:, None]


def combine(*masks: Tensor | None) -> Tensor | None:
    """Return the conjunction of the masks that are not None, or None if all are.

    Example:
        >>> combine(None, torch.tensor([True, False]), torch.tensor([True, True]))
        tensor([ True, False])
    """
    combined: Tensor | None = None
    for mask in masks:
        if mask is not None:
            check_bool(mask, "mask")
            combined = mask if combined is None else combined & mask
    return combined


def positions(key_mask: Tensor) -> Tensor:
    """Return the position of each token: the running count of real tokens, whatever side the padding is on.

    Args:
        key_mask: [B, T] bool, True = real token.

    Returns:
        [B, T] integers; padding has the position of the real token before it (0 at the start).

    Example:
        >>> positions(torch.tensor([[False, True, True], [True, True, False]]))
        tensor([[0, 0, 1],
                [0, 1, 1]])
    """
    return (key_mask.long().cumsum(-1) - 1).clamp(min=0)


def from_torch(mask: Tensor) -> Tensor:
    """Convert a boolean mask of `nn.MultiheadAttention` or `nn.Transformer`, where True means "ignore".

    Example:
        >>> from_torch(torch.tensor([False, True]))
        tensor([ True, False])
    """
    check_bool(mask, "mask")
    return ~mask


def check_bool(mask: Tensor, name: str, shape: torch.Size | None = None) -> None:
    """Raise unless the mask is boolean (with integers, nobody can tell which value means "attend") and has the shape, if one is given."""
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{name} must be a bool tensor with True = attend, but has dtype {mask.dtype}; "
            f"write `{name} == 1` (or use attnkit.masks.from_torch for masks of nn.MultiheadAttention, where True means ignore)"
        )
    if shape is not None and mask.shape != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, one value for each token, but has shape {list(mask.shape)}")


@dataclass(frozen=True)
class Mask:
    """A mask as the attention kernels want it.

    Attributes:
        allowed: Broadcasts to [B, H, Q, K], bool, or None. Rows that may attend nothing are opened here...
        alive: ...and marked False here ([B, H, Q, 1], broadcastable), so that their output can be set to zero.
        causal: Additionally, key column <= query column, with as many queries as keys. Kept symbolic, since fused kernels
            skip the masked half.
    """

    allowed: Tensor | None = None
    alive: Tensor | None = None
    causal: bool = False

    @classmethod
    def of(cls, allowed: Tensor | None) -> Self | None:
        """Wrap a boolean mask, or return None for None.

        Example:
            >>> Mask.of(torch.tensor([[True, False], [False, False]]))
            Mask(allowed=tensor([[ True, False],
                    [ True,  True]]), alive=tensor([[ True],
                    [False]]), causal=False)
        """
        if allowed is None:
            return None
        check_bool(allowed, "mask")
        allowed = allowed if allowed.dim() > 1 else allowed[None]  # [K] is the same for every query
        alive = allowed.any(-1, keepdim=True)
        return cls(allowed=allowed | ~alive, alive=alive)

    def dense(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Return the whole mask as one bool tensor that broadcasts to [B, H, Q, K]."""
        if not self.causal:
            return self.allowed
        t = torch.arange(keys, device=device)[None]
        return combine(causal(t[:, :queries], t), self.allowed)

    def rows(self, start: int, stop: int, queries: int, keys: int, device: torch.device) -> "Mask":
        """Return the mask of the queries `start:stop` alone."""
        allowed = self.dense(queries, keys, device)
        if allowed is not None and allowed.shape[-2] > 1:
            allowed = allowed[..., start:stop, :]
        alive = self.alive if self.alive is None or self.alive.shape[-2] == 1 else self.alive[..., start:stop, :]
        return Mask(allowed=allowed, alive=alive)
