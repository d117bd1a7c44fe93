"""Boolean attention masks, in which True always means "may attend" or "is a real token".

The functions return tensors that broadcast to [B, H, Q, K]; `combine` joins them. `Mask` wraps the result for attention kernels, and
neutralises rows without any key, which would otherwise be NaN after the softmax.
"""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor


def key(key_mask: Tensor) -> Tensor:
    """Let every query attend to the real keys.

    Args:
        key_mask: [B, K] bool, True = real token.

    Returns:
        [B, 1, 1, K] bool.

    Raises:
        TypeError: `key_mask` is not boolean.

    Example:
        >>> key(torch.tensor([[True, True, False]])).shape
        torch.Size([1, 1, 1, 3])
    """
    check_bool(key_mask, "key_mask")
    return key_mask[:, None, None, :]


def causal(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Let a query attend to the keys at its own and earlier positions (absolute positions, so this is also correct with a cache).

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
    """Let a query attend to the keys fewer than `window` positions away, on both sides (combine with `causal` for one side).

    Args:
        query_positions: [B, Q] or [1, Q] integers.
        key_positions: [B, K] or [1, K] integers.
        window: Number of keys on each side, including the query's own position; at least 1.

    Returns:
        [B, 1, Q, K] bool.

    Raises:
        ValueError: `window` is less than 1.

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
    queries, keys = query_positions.int(), key_positions.int()
    return ((queries[:, :, None] - keys[:, None, :]).abs() < window)[:, None]


def document(query_documents: Tensor, key_documents: Tensor) -> Tensor:
    """Let a query attend to the keys of its own document in rows that pack several documents.

    Args:
        query_documents: [B, Q] integers, the document of each query.
        key_documents: [B, K] integers, the document of each key.

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


def starts(documents: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """Return which tokens are the first of their document in rows that pack several documents.

    Args:
        documents: [B, T] integers, the document of each token.
        key_mask: [B, T] bool, True = real token (default: all); the numbers at padding are not read.

    Returns:
        [B, T] bool. The first token of a row counts as one.

    Example:
        >>> starts(torch.tensor([[7, 7, 9, 9]])).int()
        tensor([[1, 0, 1, 0]], dtype=torch.int32)
        >>> starts(torch.tensor([[7, 0, 7, 9]]), torch.tensor([[True, False, True, True]])).int()
        tensor([[1, 0, 0, 1]], dtype=torch.int32)
    """
    if key_mask is not None:
        columns = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
        documents = documents.gather(1, columns.masked_fill(~key_mask, 0).cummax(1).values)  # padding is in the last token's document
    changed = documents[:, 1:] != documents[:, :-1]
    return torch.cat([torch.ones_like(documents[:, :1], dtype=torch.bool), changed], 1)


def stretches(documents: Tensor | None, key_mask: Tensor | None) -> Tensor | None:
    """Number the documents and the stretches of padding of each row from 0, in their order, so that one number says which keys to read.

    Args:
        documents: [B, T] integers, the document of each token in rows that pack several contiguous documents (default: a row is one).
        key_mask: [B, T] bool, True = real token (default: all).

    Returns:
        [B, T] int64; or None if there is neither, or if padding lies between real tokens.

    Example:
        >>> stretches(torch.tensor([[7, 7, 9, 9]]), torch.tensor([[True, True, True, False]]))
        tensor([[0, 0, 1, 2]])
        >>> stretches(None, torch.tensor([[True, False, True]]))
    """
    if documents is None and key_mask is None:
        return None
    changed = False if documents is None else documents[:, 1:] != documents[:, :-1]
    if key_mask is not None:
        begins = key_mask[:, 1:] & ~key_mask[:, :-1]
        if bool((begins.sum(1) + key_mask[:, 0] > 1).any()):
            return None
        changed = key_mask[:, 1:] & key_mask[:, :-1] & changed | (key_mask[:, 1:] != key_mask[:, :-1])
    return F.pad(changed.long().cumsum(1), (1, 0))  # type: ignore[union-attr]  # one of them is a tensor


def combine(*masks: Tensor | None) -> Tensor | None:
    """Return the logical AND of the masks that are not None, or None if all are None.

    Raises:
        TypeError: A mask is not boolean.

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
    """Return the position of each token: the running count of real tokens, whichever side the padding is on.

    Args:
        key_mask: [B, T] bool, True = real token.

    Returns:
        [B, T] int64; padding has the position of the preceding real token (0 at the start).

    Example:
        >>> positions(torch.tensor([[False, True, True], [True, True, False]]))
        tensor([[0, 0, 1],
                [0, 1, 1]])
    """
    return (key_mask.long().cumsum(-1) - 1).clamp(min=0)


def from_torch(mask: Tensor) -> Tensor:
    """Convert a boolean mask of `nn.MultiheadAttention` or `nn.Transformer`, where True means "ignore".

    Raises:
        TypeError: The mask is not boolean.

    Example:
        >>> from_torch(torch.tensor([False, True]))
        tensor([ True, False])
    """
    check_bool(mask, "mask")
    return ~mask


def check_bool(mask: Tensor, name: str, shape: torch.Size | None = None) -> None:
    """Check the dtype of a mask (integers would not say which value means "attend"), and its shape if `shape` is given.

    Raises:
        TypeError: The mask is not boolean.
        ValueError: The mask has a different shape.
    """
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{name} must be a bool tensor with True = attend, but has dtype {mask.dtype}; "
            f"write `{name} == 1` (or use attnkit.masks.from_torch for masks of nn.MultiheadAttention, where True means ignore)"
        )
    if shape is not None and mask.shape != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, one value per token, but has shape {list(mask.shape)}")


@dataclass(frozen=True)
class Mask:
    """A mask in the form that attention kernels need.

    Attributes:
        allowed: Bool, broadcastable to [B, H, Q, K], or None. Rows without any key are opened (all True) here...
        alive: ...and marked False here ([B, H, Q, 1], broadcastable), so that their output can be set to zero.
        causal: Whether the key's index must also not exceed the query's; there are as many queries as keys. Kept symbolic to let fused
            kernels skip the masked half.
        window: If set, the key's index must also be fewer than `window` away from the query's. Also kept symbolic.
        stretches: If set, [B, T] int64, ascending in each row: a query reads only the keys of its own number, as `stretches` gives them;
            there are as many queries as keys. Also kept symbolic.
    """

    allowed: Tensor | None = None
    alive: Tensor | None = None
    causal: bool = False
    window: int | None = None
    stretches: Tensor | None = None

    @property
    def is_symbolic(self) -> bool:
        """Whether a window, documents or padding are kept symbolic."""
        return self.window is not None or self.stretches is not None

    @classmethod
    def of(cls, allowed: Tensor | None) -> Self | None:
        """Wrap a boolean mask, or return None for None.

        Raises:
            TypeError: The mask is not boolean.

        Example:
            >>> Mask.of(torch.tensor([[True, False], [False, False]]))
            Mask(allowed=tensor([[ True, False],
                    [ True,  True]]), alive=tensor([[ True],
                    [False]]), causal=False, window=None, stretches=None)
        """
        if allowed is None:
            return None
        check_bool(allowed, "mask")
        allowed = allowed if allowed.dim() > 1 else allowed[None]  # a mask [K] applies to every query
        alive = allowed.any(-1, keepdim=True)
        return cls(allowed=allowed | ~alive, alive=alive)

    def dense(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Return the mask as one bool tensor that broadcasts to [B, H, Q, K], or None if it allows everything."""
        return combine(self._symbolic(slice(queries), keys, device), self.allowed)

    def _symbolic(self, rows: slice, keys: int, device: torch.device) -> Tensor | None:
        """Return the symbolic part of the mask for these queries, [B or 1, 1, rows, K], or None if there is none."""
        t = torch.arange(keys, device=device, dtype=torch.int32)
        near = self.near(t - t[rows, None]) if self.causal or self.window is not None else None
        return combine(None if near is None else near[None, None], self.same_stretch(rows, slice(keys)))

    def same_stretch(self, rows: slice, columns: slice) -> Tensor | None:
        """Return which of these keys have the number of a query, [B, 1, rows, columns], or None if there are no numbers."""
        return None if self.stretches is None else document(self.stretches[:, rows], self.stretches[:, columns])

    def near(self, offsets: Tensor) -> Tensor | None:
        """Return which offsets (the key's index minus the query's) causality and the window allow, or None if they allow all."""
        near = None if self.window is None else offsets.abs() < self.window
        return combine(offsets <= 0 if self.causal else None, near)

    def rows(self, start: int, stop: int, queries: int, keys: int, device: torch.device) -> "Mask":
        """Return the mask of the queries `start:stop` only."""
        allowed = self.allowed if self.allowed is None or self.allowed.shape[-2] == 1 else self.allowed[..., start:stop, :]
        allowed = combine(self._symbolic(slice(start, stop), keys, device), allowed)
        alive = self.alive if self.alive is None or self.alive.shape[-2] == 1 else self.alive[..., start:stop, :]
        return Mask(allowed=allowed, alive=alive)
