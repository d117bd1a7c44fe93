"""Decoding state as an immutable value: whatever a model remembers between steps, in a frozen dataclass of tensors.

A state is never modified in place. So generations cannot interfere with each other, and a beam search that returns to an older state finds
it intact.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from torch import Tensor


@dataclass(frozen=True)
class State:
    """Base class of all states. The first axis of every tensor in it, however deeply nested, is the batch."""

    def select(self, index: Tensor) -> Self:
        """Return the state of the rows `index` [N] int64: the batch reordered, repeated or shortened.

        Example:
            >>> import torch
            >>> from dataclasses import dataclass
            >>> @dataclass(frozen=True)
            ... class Counter(State):
            ...     count: torch.Tensor
            >>> Counter(torch.tensor([5, 7])).select(torch.tensor([1, 1, 0]))
            Counter(count=tensor([7, 7, 5]))
        """
        return replace(self, **{f.name: _select(getattr(self, f.name), index) for f in fields(self)})


def _select(value: Any, index: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(0, index)
    if isinstance(value, State):
        return value.select(index)
    if isinstance(value, tuple):
        return tuple(_select(v, index) for v in value)
    return value
