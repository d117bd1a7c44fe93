r"""Quantiles of the metric over seeds, for components that fail now and then: a run that diverged is worse than any number.

Values here are badness: the metric if lower is better, otherwise its negative; infinite for a run that diverged. The quantile q is thus
what a share q of the runs reaches, and exists however many of them diverge.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import stats

Better = Literal["lower", "higher"]


def reached(values: Sequence[float], share: float, *, better: Better = "lower") -> float:
    r"""Return the value that a share of the runs reaches: the worst of the best $\lceil n q \rceil$ of n; NaN if that run diverged.

    Args:
        values: Values of the metric; NaN for a run that diverged, which is worse than any number.
        share: The quantile q, counted from the best run.
        better: Whether a lower or a higher value is better.

    Example:
        >>> runs = [0.3, math.nan, 0.1, 0.2]
        >>> reached(runs, 0.5), reached(runs, 0.75), reached(runs, 0.9), reached(runs, 0.5, better="higher")
        (0.2, 0.3, nan, 0.2)
    """
    bad = np.sort(badness(values, better=better))
    found = float(bad[math.ceil(len(bad) * share - 1e-9) - 1])
    return math.nan if math.isinf(found) else found if better == "lower" else -found


def badness(values: Sequence[float] | np.ndarray, *, better: Better) -> np.ndarray:
    """Convert values of the metric to badness.

    Example:
        >>> badness([0.5, math.nan], better="higher").tolist()
        [-0.5, inf]
    """
    given = np.asarray(values, dtype=np.float64)
    return np.where(np.isnan(given), np.inf, given if better == "lower" else -given)


def fewest_seeds(share: float, *, level: float) -> int:
    """Return the fewest seeds with which a difference of quantiles can be shown at this level.

    Example:
        >>> fewest_seeds(0.5, level=0.05), fewest_seeds(0.9, level=0.05), fewest_seeds(0.5, level=0.01)
        (7, 45, 10)
    """
    return math.floor(math.log(3 / 16 * level) / math.log(max(share, 1 - share))) + 1


def quantile_p(ours: np.ndarray, theirs: np.ndarray, share: float) -> np.ndarray:
    r"""Return the two-sided p-values, [...], of the hypothesis that two variants have the same quantile.

    If the quantile of A is not below that of B, some t between them satisfies $P(A < t) \le q \le P(B \le t)$. Three tests that share the
    level check whether this is plausible: too many runs of A below t (binomial, 3/8), too few of B (3/8), or A below t in too many of the
    seeds for which only one of the two is (McNemar's sign test, 1/4). The p-value is the largest over all t, because the true t is unknown,
    and twice the smaller of the two directions. It is therefore valid for any distribution, with ties and diverged runs, and for any
    dependence between runs of the same seed, from which the third test gains power.

    Args:
        ours: Badness of the variant, [..., seeds].
        theirs: Badness of the reference, for the same seeds.
        share: The quantile q.

    Example:
        >>> round(float(quantile_p(np.arange(8.0), np.arange(20.0, 28.0), 0.5)), 4)
        0.0208
    """
    return np.asarray(np.minimum(1.0, 2 * np.minimum(_lower_p(ours, theirs, share), _lower_p(theirs, ours, share))))


def quantile_interval(ours: np.ndarray, theirs: np.ndarray, share: float, *, level: float) -> tuple[float, float]:
    """Return the interval of the shifts between the quantiles of two variants that `quantile_p` does not exclude at a level.

    It covers the difference with a probability of at least 1 - level. An end is infinite if there are too few seeds, or if a quantile may
    fall on a run that diverged. The arguments are those of `quantile_p`.

    Example:
        >>> quantile_interval(np.arange(8.0), np.arange(20.0, 28.0), 0.5, level=0.05)
        (-27.0, -13.0)
    """
    return _lowest(ours, theirs, share, level / 2), -_lowest(theirs, ours, share, level / 2)


def quantile_examples_error(
    runs: Sequence[tuple[float, np.ndarray, np.ndarray]], share: float, *, better: Better = "lower", redraws: int = 400
) -> float:
    r"""Return the standard error, over test examples, of the difference of the quantiles of two sides, by bootstrapping the examples.

    Examples are drawn with replacement, the same ones for all runs, so that failures on the same examples cancel. The quantiles are those
    on test sets of this size: they include the noise of each metric around its expectation.

    Args:
        runs: For each variant, its weight (positive on one side, negative on the other) and the two sums whose quotient is the metric:
            [seeds, examples], with NaN for a run that diverged, and [examples].
        share: The quantile q, counted from the best run.
        better: Whether a lower or a higher metric is better.
        redraws: Number of draws.

    Example:
        >>> ours, theirs = np.array([[0.0, 0.0, 1.0, 0.0]]), np.array([[1.0, 0.0, 1.0, 1.0]])
        >>> round(quantile_examples_error([(1.0, ours, np.ones(4)), (-1.0, theirs, np.ones(4))], 0.5), 2)
        0.29
    """
    count = len(runs[0][2])
    drawn = _drawn(count, redraws)
    sides = [np.zeros((redraws, len(runs[0][1]))), np.zeros((redraws, len(runs[0][1])))]
    for weight, top, bottom in runs:
        sides[weight < 0] += abs(weight) * (drawn @ top.T) / (drawn @ bottom)[:, None]
    ours, theirs = (np.sort(badness(side, better=better), axis=1)[:, math.ceil(side.shape[1] * share - 1e-9) - 1] for side in sides)
    return float(np.std(ours - theirs, ddof=1)) * math.sqrt(count / (count - 1))


@lru_cache
def _drawn(count: int, redraws: int) -> np.ndarray:
    """Return how often each example is drawn, [redraws, examples]."""
    return np.random.default_rng(0).multinomial(count, [1 / count] * count, size=redraws)


def with_error(estimate: float, interval: tuple[float, float], error: float, *, level: float) -> tuple[float, float]:
    r"""Widen the interval of an estimate to include an independent, normal error (Zou and Donner 2008).

    Equation:
        $$\left[ m - \sqrt{(m - l)^2 + z^2 s^2},\; m + \sqrt{(u - m)^2 + z^2 s^2} \right]$$

    for the estimate m, its interval [l, u] without the error, and the standard error s; both intervals have the same level

    Example:
        >>> low, high = with_error(1.0, (-2.0, math.inf), 4 / 1.96, level=0.05)
        >>> round(low, 3), high
        (-4.0, inf)
    """
    half = float(stats.norm.isf(level / 2)) * error
    return estimate - math.hypot(estimate - interval[0], half), estimate + math.hypot(interval[1] - estimate, half)


def _lowest(ours: np.ndarray, theirs: np.ndarray, share: float, level: float) -> float:
    """Return the smallest shift d at which the quantile of `theirs` + d is not shown to be lower than that of `ours`."""
    ends = np.unique(np.subtract.outer(ours[np.isfinite(ours)], theirs[np.isfinite(theirs)]))
    between = np.concatenate([ends[:1] - 1, (ends[1:] + ends[:-1]) / 2, ends[-1:] + 1]) if len(ends) else np.zeros(1)
    first = bisect_left(between, 1, key=lambda d: int(_lower_p(theirs + d, ours, share) >= level))
    return -math.inf if first == 0 else math.inf if first == len(between) else float(ends[first - 1])


def _lower_p(ours: np.ndarray, theirs: np.ndarray, share: float) -> np.ndarray:
    """Return the p-values of the hypothesis that the quantile of `ours` is not lower than that of `theirs`; see `quantile_p`."""
    n = ours.shape[-1]
    values = np.concatenate([ours, theirs], axis=-1)  # the evidence between two of these values is no weaker than at one of them
    # the first of the sorted values t with a < t, and the first with b <= t
    if values.ndim == 1:  # `rankdata` spends 0.1 ms on its arguments
        ordered = np.sort(values)
        above, reaching = ordered.searchsorted(ours, "right"), ordered.searchsorted(theirs)
    else:
        above = stats.rankdata(values, method="max", axis=-1)[..., :n].astype(int)
        reaching = stats.rankdata(values, method="min", axis=-1)[..., n:].astype(int) - 1
    below, up_to, both = (_counts(first) for first in (above, reaching, np.maximum(above, reaching)))
    few, many, more = _tables(n, share)
    return np.asarray(np.minimum(8 / 3 * np.minimum(many[below], few[up_to]), 4 * more[below - both, up_to - both]).max(-1))


def _counts(first: np.ndarray) -> np.ndarray:
    """Return how many of n numbers from 0 to 2n do not exceed 0, 1, ..., 2n - 1, [..., 2n]."""
    n = first.shape[-1]
    rows = first.reshape(-1, n)
    places = rows + (2 * n + 1) * np.arange(len(rows))[:, None]
    found = np.bincount(places.ravel(), minlength=len(rows) * (2 * n + 1)).reshape(-1, 2 * n + 1)
    return np.asarray(found[:, :-1].cumsum(-1)).reshape(*first.shape[:-1], 2 * n)


@lru_cache
def _tables(n: int, share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the probabilities of at most and at least k of n runs, [n + 1], and of at least so many wins given losses, [n + 1, n + 1]."""
    counts = np.arange(n + 1)
    few, many = stats.binom.cdf(counts, n, share), stats.binom.sf(counts - 1, n, share)
    return few, many, stats.binom.sf(counts[:, None] - 1, counts[:, None] + counts, 0.5)
