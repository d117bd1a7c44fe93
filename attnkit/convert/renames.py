"""Tables of renames: which tensors of a published checkpoint ("theirs") correspond to which of attnkit's ("ours"), by invertible maps.

`{i}` in a name stands for the number of the layer; a rename applies to each layer in which all of our names exist.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

LAYER = "stack.decoder.layers.{i}"
"""The prefix of our names of the parameters in a decoder layer."""


class Map(Protocol):
    """An invertible map between their tensors and ours."""

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        """Return our tensors."""
        ...

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        """Return their tensors."""
        ...


@dataclass(frozen=True)
class Each:
    """Maps each tensor separately: theirs to ours with `forth`, and ours to theirs with `back`."""

    forth: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        """Return our tensors."""
        return [self.forth(x) for x in theirs]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        """Return their tensors."""
        return [self.back(x) for x in ours]


def transpose(first: int = 0, second: int = 1) -> Each:
    """Swaps two axes of each tensor (GPT-2's Conv1D)."""
    return Each(*[lambda x: x.transpose(first, second)] * 2)


def add(number: float) -> Each:
    """Ours is theirs plus a number, at least in float32: 1 for norm weights that are stored minus one (Gemma, Nemotron)."""
    return Each(lambda x: x.to(torch.promote_types(x.dtype, torch.float32)) + number, lambda x: x - number)


def drop_first(rows: int) -> Each:
    """Ours is theirs without its first rows, which are never read and are written as zeros (RoBERTa's positions)."""
    return Each(lambda x: x[rows:], lambda x: torch.cat([torch.zeros_like(x[:rows]), x]))


def squeeze(axis: int = 1) -> Each:
    """Ours lacks an axis of length one (weights of depthwise convolutions)."""
    return Each(lambda x: x.squeeze(axis), lambda x: x.unsqueeze(axis))


@dataclass(frozen=True)
class Split:
    """One fused tensor of theirs is several of ours, parts of its rows; in several groups, each group (head) has a slice of every part."""

    sizes: tuple[int, ...]  # rows of each part in one group
    groups: int = 1

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        """Return the parts."""
        (fused,) = theirs
        grouped = fused.reshape(self.groups, sum(self.sizes), *fused.shape[1:])
        return [part.flatten(0, 1) for part in torch.split(grouped, list(self.sizes), 1)]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        """Return the whole."""
        parts = [x.reshape(self.groups, size, *x.shape[1:]) for x, size in zip(ours, self.sizes, strict=True)]
        return [torch.cat(parts, 1).flatten(0, 1)]


@dataclass(frozen=True)
class Rename:
    """A correspondence between tensors of ours and theirs, by their names."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    maps: tuple[Map, ...] = ()  # applied to theirs in this order; their inverses are applied to ours in reverse order

    def at(self, layer: int) -> "Rename":
        """Return the rename of one layer."""
        left, right = (tuple(name.replace("{i}", str(layer)) for name in names) for names in (self.ours, self.theirs))
        return Rename(left, right, self.maps)

    def to_ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        """Return our tensors."""
        tensors = list(theirs)
        for each in self.maps:
            tensors = each.ours(tensors)
        return tensors

    def to_theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        """Return their tensors."""
        tensors = list(ours)
        for each in reversed(self.maps):
            tensors = each.theirs(tensors)
        return tensors


def rename(ours: str | tuple[str, ...], theirs: str | tuple[str, ...], *maps: Map) -> tuple[Rename, ...]:
    """Return one rename or, if the names end with `.*`, one for the weight and one for the bias.

    Example:
        >>> [r.theirs for r in rename("head.projection.*", "lm_head.*")]
        [('lm_head.weight',), ('lm_head.bias',)]
    """
    left, right = ((names,) if isinstance(names, str) else names for names in (ours, theirs))
    kinds = ("weight", "bias") if any(name.endswith(".*") for name in (*left, *right)) else ("",)

    def named(names: tuple[str, ...], kind: str) -> tuple[str, ...]:
        return tuple(name[:-1] + kind if name.endswith(".*") else name for name in names)

    return tuple(Rename(named(left, kind), named(right, kind), maps) for kind in kinds)


def expand(renames: Iterable[Rename], ours: Mapping[str, Tensor]) -> list[Rename]:
    """Return the renames for each layer in which our names exist; raise a `KeyError` if one applies nowhere."""
    layers = range(1 + max((int(part) for name in ours for part in name.split(".") if part.isdigit()), default=0))
    table = []
    for row in renames:
        places = layers if any("{i}" in name for name in (*row.ours, *row.theirs)) else (0,)
        found = [each for each in (row.at(i) for i in places) if all(name in ours for name in each.ours)]
        if not found:
            raise KeyError(f"our model has none of {', '.join(row.ours)}")
        table += found
    return table
