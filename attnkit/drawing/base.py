"""What is drawn: the weights of one layer, with a label for each query and key."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

Kind = Literal["self", "cross"]

_SIGNS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one attention for one text.

    Attributes:
        part: Whose attention it is: `encoder` or `decoder`.
        kind: `self` or `cross`.
        layer: Number of the layer, from 0.
        weights: [H, Q, K].
        queries: Labels of the rows.
        keys: Labels of the columns.
        rows: What the rows are, in words.
        columns: What the columns are.
        heads: Number of each head, from 0 (default: all in order).
        note: What marks in the labels mean, in words (default: there are none).

    Raises:
        ValueError: There is not one label for each query and key.

    Example:
        >>> import torch
        >>> m = AttentionMap("encoder", "self", 0, torch.ones(2, 1, 1), ["a b"], ["a b"], "tokens", "tokens")
        >>> m.name, m.heads, m.shown(m.keys)
        ('encoder self-attention', (0, 1), ['a␣b'])
    """

    part: str
    kind: Kind
    layer: int
    weights: Tensor
    queries: Sequence[str]
    keys: Sequence[str]
    rows: str
    columns: str
    heads: tuple[int, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        heads, *size = self.weights.shape
        if size != [len(self.queries), len(self.keys)]:
            raise ValueError(f"weights {size} need as many labels, but there are {len(self.queries)} and {len(self.keys)}")
        if not self.heads:
            object.__setattr__(self, "heads", tuple(range(heads)))

    @property
    def name(self) -> str:
        """Part and kind in words; the layers of one name are drawn together."""
        return "cross-attention" if self.kind == "cross" else f"{self.part} self-attention"

    def of_heads(self, heads: Sequence[int]) -> "AttentionMap":
        """Return the map of some heads only."""
        return replace(self, weights=self.weights[list(heads)], heads=tuple(self.heads[h] for h in heads))

    @staticmethod
    def shown(labels: Sequence[str]) -> list[str]:
        """Return labels in which white space can be seen."""
        return [label.translate(_SIGNS) for label in labels]
