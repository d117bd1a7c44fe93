"""Effects over several tasks and sizes, from arrays: means over these tasks, over tasks like these, and slopes over size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A mean with its interval.

    Attributes:
        mean: The estimate.
        sd: The standard deviation of the averaged values, one per seed or per task.
        interval: Its confidence interval.
        p: The p-value of the two-sided test that the true value is 0.
        df: The degrees of freedom of Student's t.
        between: The standard deviation of true effects between tasks, if estimated.
    """

    mean: float
    sd: float
    interval: tuple[float, float]
    p: float
    df: int
    between: float | None = None


def mean_of_tasks(differences: Sequence[ArrayLike], *, alpha: float = 0.05, resolutions: Sequence[float] = ()) -> Effect:
    r"""Return the mean effect on these tasks, with equal weights.

    The tasks are fixed, and each seed gives one mean over them, a contrast of its runs, $m_s = \frac1K \sum_k d_{ks}$; Student's t is over
    the seeds. Tasks may therefore differ in noise, and runs of the same seed may depend on each other in any way. (Treating tasks as
    independent, with Satterthwaite's degrees of freedom (1946), is liberal far out in the tails, where the levels of many aggregates lie:
    in simulations with 3 seeds of 3 tasks of unequal noise, the error rate was 7 times the level of 0.0005.) The mean says nothing about
    other tasks.

    Args:
        differences: The paired differences of each task, one per seed, in a unit shared by all tasks. At least 2, and equally many in all
            tasks.
        alpha: One minus the confidence level of the interval.
        resolutions: The smallest step of each task's differences (default: 0), a lower bound for their spread.

    Example:
        >>> e = mean_of_tasks([[1.0, 1.2, 0.8], [2.0, 2.4, 1.6]])
        >>> round(e.mean, 3), e.df, [round(end, 2) for end in e.interval]
        (1.5, 2, [0.75, 2.25])
    """
    groups = _groups(differences)
    if len({len(g) for g in groups}) > 1:
        raise ValueError("every task needs the same number of seeds")
    return _student(np.mean(groups, axis=0), math.hypot(*resolutions) / len(groups), alpha)


def mean_of_seeds(values: ArrayLike, *, alpha: float = 0.05, resolution: float = 0.0) -> Effect:
    """Return the mean of at least 2 numbers, one per seed, such as means over tasks or slopes, with Student's t; see `mean_of_tasks`.

    Example:
        >>> e = mean_of_seeds([1.0, 1.2, 0.8])
        >>> round(e.mean, 3), e.df, [round(end, 2) for end in e.interval]
        (1.0, 2, [0.5, 1.5])
    """
    return _student(_groups([values])[0], resolution, alpha)


def mean_over_tasks(differences: Sequence[ArrayLike], *, alpha: float = 0.05, resolutions: Sequence[float] = ()) -> Effect:
    r"""Return the mean effect over tasks like these: over a population of tasks from which these are a sample.

    The model is hierarchical: the true effects of tasks are normal around $\mu$, and the seeds of a task are normal around its effect. All
    tasks have equal weight, so the interval is Student's t for the means of the K tasks, with K - 1 degrees of freedom: exact if all tasks
    have equally many seeds and equal noise, and free of the noisy weights that few seeds would give (in balanced data, it is the
    restricted maximum likelihood estimate). `between` is $\sqrt{\max(0, \mathrm{Var}(\bar d_k) - \overline{s_k^2 / n_k})}$. The arguments
    are those of `mean_of_tasks`, for at least 2 tasks.

    Example:
        >>> e = mean_over_tasks([[1.0, 1.2, 0.8], [2.0, 2.4, 1.6], [1.4, 1.6, 1.5]])
        >>> round(e.mean, 3), e.df, [round(end, 2) for end in e.interval], round(e.between, 2)
        (1.5, 2, [0.26, 2.74], 0.48)
    """
    groups = _groups(differences)
    if len(groups) < 2:
        raise ValueError("an effect over tasks needs at least 2 tasks")
    steps = resolutions or [0.0] * len(groups)
    least = [step / math.sqrt(len(g)) for step, g in zip(steps, groups, strict=True)]
    found = _student(np.array([g.mean() for g in groups]), math.hypot(*least) / math.sqrt(len(groups)), alpha)
    within = np.mean([max(g.var(ddof=1) / len(g), step**2) for g, step in zip(groups, least, strict=True)])
    return replace(found, between=math.sqrt(max(0.0, found.sd**2 - float(within))))


def slope(differences: ArrayLike, sizes: ArrayLike, *, alpha: float = 0.05) -> Effect:
    r"""Return the change of an effect per doubling of the size.

    Each seed has its own slope by least squares over $x = \log_2 \mathrm{size}$, $b_s = \sum_x (x - \bar x) d_{sx} / \sum_x (x - \bar
    x)^2$, a contrast of its runs; the interval is Student's t over the seeds. Runs of the same seed may depend on each other in any way.
    The paired differences have the shape [seeds, sizes]; sizes must be positive, and at least two of them different.

    Example:
        >>> e = slope([[1.0, 2.0, 3.1], [1.1, 2.0, 3.0]], [64, 128, 256])
        >>> round(e.mean, 3), e.df
        (1.0, 1)
    """
    return mean_of_seeds(seed_slopes(differences, sizes), alpha=alpha)


def seed_slopes(differences: ArrayLike, sizes: ArrayLike) -> np.ndarray:
    """Return the slope of each seed, [seeds]; see `slope`.

    Example:
        >>> seed_slopes([[0.0, 3.0], [1.0, 2.0]], [1, 8]).round(3).tolist()
        [1.0, 0.333]
    """
    d, n = np.asarray(differences, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    if d.ndim != 2 or d.shape[1] != len(n):
        raise ValueError(f"differences must have the shape [seeds, sizes], with {len(n)} sizes, but have {d.shape}")
    if (n <= 0).any() or len(set(n.tolist())) < 2:
        raise ValueError(f"sizes must be above 0 and at least two of them different, but are {n.tolist()}")
    x = np.log2(n) - np.log2(n).mean()
    return np.asarray(d @ x / (x @ x))


def _groups(differences: Sequence[ArrayLike]) -> list[np.ndarray]:
    groups = [np.asarray(d, dtype=np.float64) for d in differences]
    if not groups or any(g.ndim != 1 or len(g) < 2 for g in groups):
        raise ValueError("each task needs a list of differences of at least 2 seeds")
    if not all(np.isfinite(g).all() for g in groups):
        raise ValueError("differences must be finite: if runs diverged, a mean over tasks is undefined")
    return groups


def _student(values: np.ndarray, least: float, alpha: float) -> Effect:
    """Return the mean of values with Student's t; `least` is a lower bound of their standard deviation."""
    n, mean, sd = len(values), float(values.mean()), max(float(values.std(ddof=1)), least)
    half = float(stats.t.isf(alpha / 2, n - 1)) * sd / math.sqrt(n)
    p = float(2 * stats.t.sf(abs(mean) / sd * math.sqrt(n), n - 1)) if sd else float(mean == 0)
    return Effect(mean=mean, sd=sd, interval=(mean - half, mean + half), p=p, df=n - 1)
