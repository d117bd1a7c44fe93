# https://arxiv.org/abs/2108.13264
"""Aggregates over tasks and runs, by arrays: interquartile mean, performance profiles, stratified bootstrap (Agarwal et al. 2021)."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


def interquartile_mean(scores: ArrayLike) -> float:
    """Return the mean of the middle half of all scores of all runs and tasks: robust like the median, and less noisy.

    Args:
        scores: Of shape [runs, tasks], normalised by task so that they can be compared.

    Example:
        >>> interquartile_mean([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 700.0]])
        3.5
    """
    return float(stats.trim_mean(_scores(scores).ravel(), 0.25))


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> np.ndarray:
    r"""Return the share of runs whose score is above each threshold, averaged over tasks: $\hat F(\tau) = \frac1M \sum_m \frac1N \sum_n
    1[x_{mn} > \tau]$.

    Args:
        scores: Of shape [runs, tasks].
        thresholds: Of any length.

    Example:
        >>> performance_profile([[0.1, 0.5], [0.3, 0.9]], [0.0, 0.4, 0.8]).tolist()
        [1.0, 0.5, 0.25]
    """
    return np.asarray((_scores(scores)[None] > np.asarray(thresholds, dtype=np.float64)[:, None, None]).mean((1, 2)))


def stratified_interval(
    scores: ArrayLike,
    statistic: Callable[[np.ndarray], float] = interquartile_mean,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a statistic; runs are drawn anew within each task.

    With few runs of few tasks it is too short: with three runs of one task, it covers in 75 of 100 cases, not in 95. It is meant for many
    tasks.

    Args:
        scores: Of shape [runs, tasks].
        statistic: Of an array of that shape.
        confidence: Of the interval.
        resamples: Number of bootstrap samples.
        seed: Of the draws.

    Example:
        >>> [round(end, 2) for end in stratified_interval([[0.1, 0.5], [0.3, 0.9], [0.2, 0.7]], np.mean, resamples=200)]
        [0.35, 0.55]
    """
    values = _scores(scores)
    rng = np.random.default_rng(seed)
    rows = rng.integers(len(values), size=(resamples, *values.shape))
    found = [statistic(np.take_along_axis(values, row, axis=0)) for row in rows]
    tail = (1 - confidence) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)


def _scores(scores: ArrayLike) -> np.ndarray:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"scores must have the shape [runs, tasks], but have {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("scores must be numbers: give runs that diverged the worst score of their task, and say so")
    return values
