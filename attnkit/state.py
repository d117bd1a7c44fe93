"""Decoding state as an immutable value: everything that a model remembers between steps, in a frozen dataclass of tensors.

A state never changes, so generations cannot interfere with each other, and a beam search can return to an older state.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from attnkit.transforms import transformed


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

    def branch(self, rows: Tensor) -> Self:
        """Return the state of B N rows, the hypotheses of a beam search, which continue the `rows` [B, N] int64 of this one.

        The N hypotheses of one row always continue hypotheses of the same row, so a state may keep one copy of what they have all read.
        """
        return self.select(rows.flatten())

    def with_room(self, count: int) -> Self:
        """Return a state whose tensors keep their sizes in the next `count` steps of one token (default: this one).

        A step may then write into its tensors, so only one chain of steps may continue it.
        """
        return self

    def with_slots(self, count: int, index: Tensor) -> Self:
        """Return the same for the state of a mixer in a stack whose next token goes to `index` [B] of each cache."""
        return self


@dataclass(frozen=True, repr=False)
class Growing(State):
    """Vectors of tokens, to which more are appended without copying the existing ones.

    The storage has room behind the tokens. Without gradients, the newest state of a chain writes there, where no older one looks, and a
    full storage is replaced by one of twice the size; so appending T tokens costs O(T) in total. A state that is continued a second time
    finds the room taken, and copies. Where gradients, `torch.compile` or `torch.func` track the tensors, appending always copies.

    Attributes:
        storage: [B, H, N, E].
        start: The index of the first token in the storage.
        stop: The index after the last token (default: the end of the storage).
        room: Holds `stop` until a state has written after it; shared by all states with this storage.

    Example:
        >>> first = Growing(torch.zeros(1, 1, 2, 1)).append(torch.ones(1, 1, 1, 1))
        >>> one, other = first.append(torch.full((1, 1, 1, 1), 2.0)), first.append(torch.full((1, 1, 1, 1), 3.0))
        >>> [x.tensor.flatten().tolist() for x in (first, one, other)]
        [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 2.0], [0.0, 0.0, 1.0, 3.0]]
    """

    storage: Tensor
    start: int = 0
    stop: int | None = None
    room: list[int] = field(default_factory=list, compare=False)

    def __repr__(self) -> str:
        return f"Growing({self.tensor})"  # the storage beyond the tokens belongs to other states, or to none

    @property
    def tensor(self) -> Tensor:
        """The tokens, [B, H, T, E]: a view."""
        return self.storage if self.stop is None else self.storage.narrow(-2, self.start, self.stop - self.start)

    def append(self, new: Tensor) -> "Growing":
        """Return these tokens followed by `new` [B, H, T, E]."""
        if not _writes(self.storage, new):
            return Growing(torch.cat([self.tensor, new], -2))
        end = self.storage.shape[-2] if self.stop is None else self.stop
        start, stop, storage, room = self.start, end + new.shape[-2], self.storage, self.room
        if stop > storage.shape[-2] or not _taken(room, end):
            end, stop = end - start, stop - start
            storage, room = new.new_empty(*new.shape[:-2], 2 * stop, new.shape[-1]), []
            storage[..., :end, :] = self.tensor
            start = 0
        storage.narrow(-2, end, stop - end).copy_(new)
        room.append(stop)
        return Growing(storage, start, stop, room)

    def last(self, count: int) -> "Growing":
        """Return the last `count` tokens, or all if there are fewer."""
        end = self.storage.shape[-2] if self.stop is None else self.stop
        return replace(self, start=max(self.start, end - count), stop=end)

    def with_vectors(self, tensor: Tensor) -> "Growing":
        """Return other vectors [B, H, T, E] of the same tokens."""
        return Growing(tensor)

    def select(self, index: Tensor) -> "Growing":
        """Return the rows `index` [N] int64, with their own room."""
        storage = self.storage.index_select(0, index)
        return Growing(storage) if self.stop is None else Growing(storage, self.start, self.stop, [self.stop])


@dataclass(frozen=True, repr=False)
class Slots(Growing):
    """Vectors of tokens and room for more: `append` writes into the storage, at an index that is itself a tensor.

    Attributes:
        index: [B] int64, where the next token goes: the same place in all rows.

    Example:
        >>> slots = Slots(torch.zeros(1, 1, 3, 1), index=torch.tensor([1]))
        >>> slots.append(torch.ones(1, 1, 1, 1)).tensor.flatten().tolist(), slots.last(1).tensor.flatten().tolist()
        ([0.0, 1.0, 0.0], [1.0])
    """

    index: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.long))

    def append(self, new: Tensor) -> "Slots":
        """Write `new` [B, H, T, E] into this object's storage."""
        self.storage.index_copy_(-2, self._columns(new.shape[-2]), new)
        return self

    def last(self, count: int) -> Growing:
        """Return the `count` tokens of the last `append`."""
        return Growing(self.storage.index_select(-2, self._columns(count)))

    def with_vectors(self, tensor: Tensor) -> "Slots":
        """Return other vectors [B, H, T, E] of the same tokens."""
        return Slots(tensor, index=self.index)

    def select(self, index: Tensor) -> "Slots":
        """Return the rows `index` [N] int64."""
        return Slots(self.storage.index_select(0, index), index=self.index.index_select(0, index))

    def _columns(self, count: int) -> Tensor:
        first = self.index[:1]
        return first if count == 1 else first + torch.arange(count, device=first.device)


def _writes(storage: Tensor, new: Tensor) -> bool:
    """Return whether the storage may be written in place, which tracked tensors forbid."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or transformed():
        return False
    if new.shape[:-2] != storage.shape[:-2] or new.shape[-1] != storage.shape[-1]:
        return False  # torch.cat would raise, whereas writing would broadcast
    is_alike = new.dtype == storage.dtype and new.device == storage.device
    return is_alike and type(new) is type(storage) is Tensor and storage.is_inference() == torch.is_inference_mode_enabled()


def _taken(room: list[int], end: int) -> bool:
    """Take the room after `end` and return whether it was free, atomically, so that only one of several threads gets it."""
    try:
        room.remove(end)
    except ValueError:
        return False
    return True


def _select(value: Any, index: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(0, index)
    if isinstance(value, State):
        return value.select(index)
    if isinstance(value, tuple):
        return tuple(_select(v, index) for v in value)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a state, however deeply nested.

    Example:
        >>> import torch
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Pair(State):
        ...     tensors: tuple
        >>> [x.shape for x in tensors_in(Pair((torch.zeros(2, 3), None)))]
        [torch.Size([2, 3])]
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Growing):
        yield value.tensor
    elif isinstance(value, State | tuple):
        for part in (getattr(value, field.name) for field in fields(value)) if isinstance(value, State) else value:
            yield from tensors_in(part)
