"""The power of a number of seeds, before any are run."""

import math
from bisect import bisect_left
from functools import lru_cache

import numpy as np
from scipy import optimize, special, stats

POWER = 0.8
MOST_SEEDS = 10_000  # the maximum number of seeds that the reason for a verdict suggests
FAR = 9.0  # the probability beyond this number of standard deviations is 2e-19
NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)


def power(effect: float, pairs: int, *, alpha: float = 0.05) -> float:
    r"""Return the power of a two-sided paired t test against `effect`, in units of the sd of differences.

    With z standard normal, s the root of a chi-square variable over its degrees of freedom, and c the critical value, the power is the
    probability that $|z + \delta| > c s$, where $\delta = \mathrm{effect} \sqrt n$. Given z, this is a value of the chi-square distribution
    function, which is integrated over z: scipy's noncentral t is NaN for many combinations of few pairs and small levels.

    Example:
        >>> round(power(1.0, 10), 3)
        0.803
    """
    limit, shift = float(stats.t.isf(alpha / 2, pairs - 1)), effect * math.sqrt(pairs)
    return min(1.0, _beyond(limit, shift, pairs - 1) + _beyond(limit, -shift, pairs - 1))


def _beyond(limit: float, shift: float, df: int) -> float:
    """Return P(z + shift > limit s)."""
    high = min(shift, FAR)
    if high <= -FAR:
        return 0.0
    z = (high + FAR) / 2 * NODES + (high - FAR) / 2  # from -FAR to high
    inside = special.gammainc(df / 2, df / 2 * ((shift - z) / limit) ** 2) * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float((high + FAR) / 2 * (WEIGHTS @ inside))


@lru_cache
def detectable(pairs: int, *, alpha: float = 0.05, power: float = POWER) -> float:
    """Return the smallest difference that a paired t test detects with this power, in units of the sd of differences.

    Example:
        >>> [round(detectable(n), 2) for n in (3, 5, 10, 20)]
        [3.26, 1.68, 1.0, 0.66]
    """
    high = 1.0
    while _power(high, pairs, alpha) < power:
        high *= 2
    return float(optimize.brentq(lambda effect: _power(effect, pairs, alpha) - power, 0.0, high))


def seeds_needed(effect: float, *, alpha: float = 0.05, power: float = POWER) -> int | None:
    """Return the fewest pairs with which a paired t test detects `effect`, in units of the sd of differences; None beyond 10,000.

    Example:
        >>> seeds_needed(1.0), seeds_needed(0.5), seeds_needed(0.001)
        (10, 34, None)
    """
    found = 2 + bisect_left(range(2, MOST_SEEDS + 1), power, key=lambda pairs: _power(effect, pairs, alpha))
    return found if found <= MOST_SEEDS else None


def seeds_range(
    difference: float, sd: float, pairs: int, *, alpha: float = 0.05, power: float = POWER, confidence: float = 0.9
) -> tuple[int | None, int | None]:
    """Return the fewest pairs that detect `difference`, at both ends of the confidence interval of the sd, which is wide for few pairs.

    The interval of the sd comes from the chi-square distribution. None stands for more than 10,000.

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
