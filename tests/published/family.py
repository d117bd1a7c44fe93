"""Published architectures as data: a configuration of transformers, our spec, and the table of renames between their parameters.

A rename pairs tensors of the two sides through invertible maps. `{i}` in a name stands for the number of the layer; a rename holds for
each layer where all of our names exist.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from attnkit.convert.renames import Map, Rename, Split, add, expand, rename, transpose

__all__ = ["add", "Map", "Rename", "Split", "transpose", "rename"]


@dataclass(frozen=True)
class Reshape:
    """Reshape one tensor."""

    to_ours: tuple[int, ...]
    to_theirs: tuple[int, ...]

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        return [x.reshape(self.to_ours) for x in theirs]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [x.reshape(self.to_theirs) for x in ours]


@dataclass(frozen=True)
class Join:
    """Several of their tensors are one of ours: the inverse of `Split`."""

    sizes: tuple[int, ...]
    axis: int = 0

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(list(theirs), self.axis)]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        (fused,) = ours
        return list(fused.split(self.sizes, self.axis))


@dataclass(frozen=True)
class Stack:
    """Several of their tensors (experts) are one of ours, along a new axis."""

    axis: int = 0

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.stack(list(theirs), self.axis)]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        (stacked,) = ours
        return list(stacked.unbind(self.axis))


@dataclass(frozen=True)
class Permute:
    """Reorder the indices of the first axis: ours[j] = theirs[order[j]]."""

    order: tuple[int, ...]

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        return [x[list(self.order)] for x in theirs]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        inverse = [self.order.index(j) for j in range(len(self.order))]
        return [x[inverse] for x in ours]


@dataclass(frozen=True)
class Scale:
    """Ours is theirs times a nonzero number."""

    number: float

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        return [x * self.number for x in theirs]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [x / self.number for x in ours]


@dataclass(frozen=True)
class Drop:
    """Ours lacks their first rows, which are never read (the offset 2 of OPT's and BART's positions)."""

    rows: int

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        return [x[self.rows :] for x in theirs]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([x.new_zeros(self.rows, *x.shape[1:]), x]) for x in ours]


@dataclass(frozen=True)
class Gap:
    """Ours has rows of zeros that theirs lacks, before the row `at` (registers without positions)."""

    at: int
    rows: int

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([x[: self.at], x.new_zeros(self.rows, *x.shape[1:]), x[self.at :]]) for x in theirs]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([x[: self.at], x[self.at + self.rows :]]) for x in ours]


@dataclass(frozen=True)
class Copy:
    """One tensor that they share is several equal ones of ours."""

    times: int

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        (shared,) = theirs
        return [shared.clone() for _ in range(self.times)]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [ours[0]]


@dataclass(frozen=True)
class Constant:
    """They have no such parameter: ours has this value. For a rename without their names."""

    value: float
    shape: tuple[int, ...]

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.full(self.shape, self.value, dtype=torch.float64)]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return []


def columns(size: int) -> Reshape:
    """Return the map that drops the empty middle axis of a depth-wise convolution's weight of this many elements per channel."""
    return Reshape((-1, size), (-1, 1, size))


@dataclass(frozen=True)
class Family:
    """One published architecture.

    Args:
        name: As written by its authors.
        paper: URL of the paper.
        theirs: The classes of transformers: configuration and model.
        config: Small sizes for the configuration.
        spec: Keyword arguments of `attnkit.compose` for the same sizes.
        renames: The table of renames. Every parameter of either side stands in exactly one.
        missing: The part that cannot be expressed, in words; nothing is compared then, and `spec` and `renames` may be empty.
        note: Further remarks for readers.
        overrides: Attributes of their configuration that are set once the model is built, for what its constructor overwrites.
        unread: Names of theirs (with `{i}`, and `*` for anything) that their forward does not read, or that only `front` reads, or
            tables that ours computes; they keep their values.
        inputs: The inputs of their model, if they are not tokens: the name of the argument, and the shape of one example.
        front: Computes the embedded inputs of our stack by their modules, where attnkit has no such embedding: the comparison
            is then one of stacks, and of the head.
        output: The outputs to compare: the `logits`, or their `last_hidden_state` with what comes out of our stack.
        cache: The name under which their model returns and takes its cache; empty if it takes `past_key_values`, but returns none.
        rows: Rows of a batch of targets.
        length: Tokens of a row, where the usual few would not cross the chunks in which a recurrence is computed.
        decoding: Whether their model can decode from a cache, and generate.
        tolerance: Of values and gradients, relative to the greatest; a wider one has its reason in `note`.
        padding: On which side a padded batch is padded, or None if their model does not mask padding.
    """

    name: str
    paper: str
    theirs: tuple[str, str] = ("", "")
    config: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    renames: Sequence[Rename] = ()
    missing: str = ""
    note: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    inputs: tuple[str, tuple[int, ...]] | None = None
    front: Callable[[Any, Tensor], Tensor] | None = None
    output: Literal["logits", "last_hidden_state"] = "logits"
    cache: str = "past_key_values"
    rows: int = 2
    length: int | None = None
    decoding: bool = True
    padding: str | None = "left"
    tolerance: float = 1e-10

    def expanded(self, ours: Mapping[str, Tensor]) -> list[Rename]:
        """Return the renames for each layer where our names exist; a rename that holds nowhere is an error."""
        try:
            return expand(self.renames, ours)
        except KeyError as error:
            raise KeyError(f"{self.name}: {error.args[0]}") from error
