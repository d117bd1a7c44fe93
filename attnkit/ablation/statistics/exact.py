"""Exact tests by enumeration."""

from functools import lru_cache

import numpy as np
from scipy import stats

MOST_FLIPPED = 20


def sign_flip_p(differences: np.ndarray) -> float:
    """Return the exact p-value of the hypothesis that each difference is equally likely to have the other sign.

    Example:
        >>> sign_flip_p(np.array([1.0, 2.0, 3.0, 1.5, 2.5, 0.5]))  # the smallest with six: 2 / 2^6
        0.03125
    """
    n = len(differences)
    if n > MOST_FLIPPED:
        raise ValueError(f"{n} differences have too many combinations of signs; at most {MOST_FLIPPED} differences are supported")
    sums = np.abs(_signs(n) @ differences)
    return float((sums >= np.abs(differences.sum()) * (1 - 1e-12)).mean())


@lru_cache
def _signs(n: int) -> np.ndarray:
    """Return all signs of n differences, [2^(n-1), n]; the last sign is always +, because flipping all signs negates the sum."""
    bits = np.arange(2 ** (n - 1))[:, None] >> np.arange(n)[None]
    return 1.0 - 2.0 * (bits & 1)


def signed_rank_p(differences: np.ndarray) -> float:
    """Return the exact two-sided p-value of Wilcoxon's signed-rank test; infinite differences share the highest ranks, zeros are dropped.

    This ranks a composite outcome: a run that diverged is worse than any number, so its difference is infinite.

    Example:
        >>> signed_rank_p(np.array([1.0, 2.0, 3.0, 1.5, np.inf, np.inf]))
        0.03125
        >>> signed_rank_p(np.array([1.0, 2.0, 3.0, 1.5, -np.inf, -np.inf]))
        0.9375
    """
    d = differences[differences != 0]
    ranks = np.rint(2 * stats.rankdata(np.abs(d))).astype(int)  # doubled, so that shared ranks are integers
    chances = np.zeros(ranks.sum() + 1)  # the probability of each sum of the ranks of positive differences
    chances[0] = 1.0
    for rank in ranks:
        chances[rank:] = (chances[rank:] + chances[: len(chances) - rank]) / 2
        chances[:rank] /= 2
    positive = ranks[d > 0].sum()
    extreme = max(positive, ranks.sum() - positive)
    return min(1.0, 2 * float(chances[extreme:].sum()))


def divergence_p(lost: int, won: int, pairs: int) -> float:
    r"""Return the exact two-sided p-value of the hypothesis that a variant diverges as often as its reference.

    Of the n = `pairs` seeds, only the variant diverged with `lost`, and only the reference with `won`. If both diverge equally often, and a
    shared seed does not make one diverge *less* when the other does, each of these outcomes has a probability of at most 1/4. The tail
    probability is largest at 1/4, where the difference of the counts is distributed as the heads in 2n fair coin flips, minus n:
    $p = 2 P(\mathrm{Bin}(2n, 1/2) \ge n + |lost - won|)$. The conditional tests of McNemar and Fisher give larger values: 0.0625 and
    0.0079 for 5 of 5.

    Example:
        >>> divergence_p(5, 0, 5), divergence_p(3, 0, 3), divergence_p(1, 1, 5)
        (0.001953125, 0.03125, 1.0)
    """
    return min(1.0, 2 * float(stats.binom.sf(pairs + abs(lost - won) - 1, 2 * pairs, 0.5)))
