"""The best choices for all masks of a text together."""

import itertools
import random

import pytest

from attnkit.task.filling import best_fillings


def test_the_best_fillings_match_an_exhaustive_search() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    row, n = [1, 4, 30, 4, 4, 2], 5
    masks = [sorted(((i, -rng.expovariate(1)) for i in range(10, 18)), key=lambda pair: -pair[1]) for _ in range(3)]
    ways = [([1, a, 30, b, c, 2], p + q + r) for (a, p), (b, q), (c, r) in itertools.product(*masks)]
    expected = sorted(ways, key=lambda way: -way[1])[:n]
    found = best_fillings(row, [mask[:n] for mask in masks], n=n, mask_id=4)
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected])


def test_a_text_without_masks_is_returned_unchanged() -> None:
    assert best_fillings([1, 7, 2], [], n=3, mask_id=4) == [([1, 7, 2], 0.0)]
