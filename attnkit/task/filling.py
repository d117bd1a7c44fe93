"""What stands in the places of masks: candidates for one, and the best choices for all masks of a text together."""

from collections.abc import Sequence
from heapq import nlargest
from typing import NamedTuple


class Candidate(NamedTuple):
    """A token that may stand in the place of a mask, and its probability."""

    token: str
    probability: float


class Filled(NamedTuple):
    """A text, the same with its masks filled, and the probability of what was filled in. As a string: the latter two, with a tab between.

    With several masks the probability is the product of theirs: the model tells each hidden token without knowing the others.
    """

    text: str
    filled: str
    probability: float

    def __str__(self) -> str:
        return f"{self.filled}\t{self.probability:.4f}"


def best_fillings(
    row: Sequence[int], masks: Sequence[Sequence[tuple[int, float]]], *, n: int, mask_id: int
) -> list[tuple[list[int], float]]:
    """Return the `n` most probable ways to fill the masks of a text, best first, with their log-probabilities.

    Args:
        row: The ids of the text.
        masks: For each mask in it, the `n` best ids (or all) and their log-probabilities, best first.
        n: How many ways; fewer only where no more are possible.
        mask_id: What stands for a mask in `row`.

    Example:
        >>> best_fillings([1, 4, 7, 4, 2], [[(8, -1.0), (6, -2.0)], [(9, -0.5), (5, -3.0)]], n=2, mask_id=4)
        [([1, 8, 7, 9, 2], -1.5), ([1, 6, 7, 9, 2], -2.5)]
    """
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for candidates in masks:  # the best of all are among the best of each mask
        best = nlargest(n, [(so_far + score, [*ids, i]) for so_far, ids in best for i, score in candidates])
    return [(_replaced(row, mask_id, ids), score) for score, ids in best]


def _replaced(row: Sequence[int], mask_id: int, ids: Sequence[int]) -> list[int]:
    """Return `row` with `ids` in the places of its masks, in turn."""
    rest = iter(ids)
    return [next(rest) if i == mask_id else i for i in row]
