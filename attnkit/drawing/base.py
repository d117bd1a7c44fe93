"""The attention map to draw: the weights of one layer, with labels for queries and keys."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

Kind = Literal["self", "cross"]

_SIGNS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one attention layer for one text.

    Attributes:
        part: `encoder` or `decoder`, the stack of the layer.
        kind: `self` or `cross`.
        layer: Number of the layer, from 0.
        weights: [H, Q, K].
        queries: Labels of the rows, Q of them.
        keys: Labels of the columns, K of them.
        rows: Description of the rows.
        columns: Description of the columns.
        heads: Numbers of the heads, from 0 (default: all, in order).
        note: Explanation of marks in the labels (default: none).

    Raises:
        ValueError: The number of labels does not match the weights.

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
            raise ValueError(f"weights of size {size} need as many labels, but got {len(self.queries)} and {len(self.keys)}")
        if not self.heads:
            object.__setattr__(self, "heads", tuple(range(heads)))

    @property
    def name(self) -> str:
        """Part and kind as text; layers with the same name are drawn together."""
        return "cross-attention" if self.kind == "cross" else f"{self.part} self-attention"

    def of_heads(self, heads: Sequence[int]) -> "AttentionMap":
        """Return the map of only these heads, by index in `weights`."""
        return replace(self, weights=self.weights[list(heads)], heads=tuple(self.heads[h] for h in heads))

    @staticmethod
    def shown(labels: Sequence[str]) -> list[str]:
        """Return the labels with visible white space."""
        return [label.translate(_SIGNS) for label in labels]
