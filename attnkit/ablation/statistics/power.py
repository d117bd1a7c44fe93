"""What a number of seeds can show, before they are spent."""

import math
from bisect import bisect_left
from functools import lru_cache

from scipy import optimize, stats

POWER = 0.8
MOST_SEEDS = 10_000
"""The most seeds that a reason suggests."""


def power(effect: float, pairs: int, *, alpha: float = 0.05) -> float:
    """Return the power of a two-sided paired t test against `effect`, in units of the sd of differences.

    Example:
        >>> round(power(1.0, 10), 3)
        0.803
    """
    limit, shift = stats.t.isf(alpha / 2, pairs - 1), effect * math.sqrt(pairs)
    found = float(stats.nct.sf(limit, pairs - 1, shift) + stats.nct.cdf(-limit, pairs - 1, shift))
    return 1.0 if math.isnan(found) else found  # scipy's noncentral t gives up where the power is 1


@lru_cache
def detectable(pairs: int, *, alpha: float = 0.05, power: float = POWER) -> float:
    """Return the smallest difference that a paired t test finds with this power, in units of the sd of differences.

    Example:
        >>> [round(detectable(n), 2) for n in (3, 5, 10, 20)]
        [3.26, 1.68, 1.0, 0.66]
    """
    high = 1.0
    while _power(high, pairs, alpha) < power:
        high *= 2
    return float(optimize.brentq(lambda effect: _power(effect, pairs, alpha) - power, 0.0, high))


def seeds_needed(effect: float, *, alpha: float = 0.05, power: float = POWER) -> int | None:
    """Return the fewest pairs with which a paired t test finds `effect`, in units of the sd of differences; None beyond 10,000.

    Example:
        >>> seeds_needed(1.0), seeds_needed(0.5), seeds_needed(0.001)
        (10, 34, None)
    """
    found = 2 + bisect_left(range(2, MOST_SEEDS + 1), power, key=lambda pairs: _power(effect, pairs, alpha))
    return found if found <= MOST_SEEDS else None


def seeds_range(
    difference: float, sd: float, pairs: int, *, alpha: float = 0.05, power: float = POWER, confidence: float = 0.9
) -> tuple[int | None, int | None]:
    """Return the fewest pairs that find `difference`, at both ends of the confidence interval of the sd, which few pairs know badly.

    The interval of the sd is that of the chi-square distribution. None: more than 10,000.

    Example:
        >>> seeds_range(1.0, 1.0, 5), seeds_range(1.0, 1.0, 50)
        ((6, 47), (8, 14))
    """
    tail = (1 - confidence) / 2
    sums = sd * sd * (pairs - 1)
    ends = [math.sqrt(sums / stats.chi2.isf(q, pairs - 1)) for q in (tail, 1 - tail)]
    low, high = (seeds_needed(difference / end, alpha=alpha, power=power) for end in ends)
    return low, high


_power = lru_cache(maxsize=100_000)(lambda effect, pairs, alpha: power(effect, pairs, alpha=alpha))
