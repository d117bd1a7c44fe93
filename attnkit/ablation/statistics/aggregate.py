# https://arxiv.org/abs/2108.13264
"""Aggregates over tasks and runs, from arrays: interquartile mean, performance profiles, stratified bootstrap (Agarwal et al. 2021)."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike


def interquartile_mean(scores: ArrayLike) -> float:
    """Return the mean of the middle half of the scores of all runs and tasks: robust like the median, but less noisy.

    Args:
        scores: Scores of shape [runs, tasks], normalised per task so that they are comparable.

    Example:
        >>> interquartile_mean([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 700.0]])
        3.5
    """
    ordered = np.sort(_scores(scores), axis=None)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> np.ndarray:
    r"""Return the share of runs whose score is above each threshold, averaged over tasks: $\hat F(\tau) = \frac1M \sum_m \frac1N \sum_n
    1[x_{mn} > \tau]$, from scores of shape [runs, tasks].

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
    examples: Sequence[ArrayLike] = (),
    spreads: Sequence[float] = (),
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a statistic; runs are resampled within each task.

    With few runs of few tasks the interval is too short: with three runs of one task, its coverage is 75 %, not 95 %. It is meant for many
    tasks.

    Args:
        scores: Scores of shape [runs, tasks].
        statistic: A function of an array of that shape.
        confidence: The confidence level of the interval.
        resamples: Number of bootstrap samples.
        seed: The seed of the resampling.
        examples: For each task, the contribution of each test example to the scores, [runs, examples], with mean 0 in each run; see
            `examples_parts`. Examples are then resampled too: the same ones for all runs, and for tasks with equally many examples.
            Empty: the interval is conditional on these test examples.
        spreads: For each task, how far repeated tuning would move all its scores; see `tuning_spread`. Empty: the interval is
            conditional on this tuning.

    Example:
        >>> [round(end, 2) for end in stratified_interval([[0.1, 0.5], [0.3, 0.9], [0.2, 0.7]], np.mean, resamples=200)]
        [0.35, 0.55]
    """
    drawn = _resampled(_scores(scores), resamples, seed, examples, spreads)
    low, high = _ends(np.array([statistic(one) for one in drawn]), confidence)
    return float(low), float(high)


def profile_band(
    scores: ArrayLike,
    thresholds: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    examples: Sequence[ArrayLike] = (),
    spreads: Sequence[float] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pointwise bootstrap interval of a performance profile; for the arguments, see `stratified_interval`.

    Example:
        >>> low, high = profile_band([[0.1, 0.5], [0.3, 0.9], [0.2, 0.7]], [0.0, 0.4, 1.0], resamples=200)
        >>> low.tolist(), high.tolist()
        ([1.0, 0.5, 0.0], [1.0, 0.5, 0.0])
    """
    drawn = _resampled(_scores(scores), resamples, seed, examples, spreads)
    low, high = _ends(np.array([performance_profile(one, thresholds) for one in drawn]), confidence)
    return low, high


def _resampled(
    values: np.ndarray, resamples: int, seed: int, examples: Sequence[ArrayLike], spreads: Sequence[float]
) -> Iterator[np.ndarray]:
    """Yield scores with runs resampled within each task, on resampled examples, after repeated tuning."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(len(values), size=(resamples, *values.shape))
    parts = [np.asarray(one, dtype=np.float64) for one in examples]
    for row in rows:
        found = np.take_along_axis(values, row, axis=0)
        if parts:
            shares = {n: rng.multinomial(n, [1 / n] * n) / n for n in dict.fromkeys(one.shape[1] for one in parts)}
            found = found + np.stack([one[row[:, k]] @ shares[one.shape[1]] for k, one in enumerate(parts)], axis=1)
        yield found + rng.standard_normal(len(spreads)) * spreads if spreads else found


def _ends(found: np.ndarray, confidence: float) -> np.ndarray:
    tail = (1 - confidence) / 2
    return np.asarray(np.quantile(found, [tail, 1 - tail], axis=0))


def _scores(scores: ArrayLike) -> np.ndarray:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"scores must have the shape [runs, tasks], but have {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite: give diverged runs the worst score of their task, and say so")
    return values
