"""Sources of noise besides seeds: the test examples, which are also a sample, and the choice that tuning made."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


def examples_error(runs: Iterable[tuple[float, ArrayLike, ArrayLike]]) -> tuple[float, int]:
    r"""Return the standard error, over test examples, of a weighted sum of metrics of runs on them, and its degrees of freedom.

    A metric is a quotient of sums over examples, $R = \sum_e a_e / \sum_e b_e$, such as wrong tokens and tokens. To first order, example e
    contributes $u_e = E (a_e - R b_e) / \sum b$. The contributions of the weighted sum are those of its runs, example by example, so that
    runs that fail on the same examples gain from it (Miller 2024); their standard error is that of a mean.

    Args:
        runs: The weight of each run, and its two sums for each example or each random group of examples, in the same order.

    Raises:
        ValueError: Runs have different examples, or fewer than 2.

    Example:
        >>> ours, theirs = [0, 0, 1, 0], [1, 0, 1, 1]
        >>> error, df = examples_error([(1.0, ours, [1] * 4), (-1.0, theirs, [1] * 4)])
        >>> round(error, 3), df
        (0.289, 3)
    """
    return parts_error(examples_parts(runs))


def examples_parts(runs: Iterable[tuple[float, ArrayLike, ArrayLike]]) -> np.ndarray:
    """Return what each example contributes to a weighted sum of metrics, [examples], with the mean 0; see `examples_error`.

    Contributions to sums over the same examples, such as those of a model at several sizes, may be added. So may those over different
    examples, which are independent, if there are equally many.

    Example:
        >>> examples_parts([(1.0, [0, 0, 1, 0], [1] * 4), (-1.0, [1, 0, 1, 1], [1] * 4)]).tolist()
        [-0.5, 0.5, 0.5, -0.5]
    """
    total, below = np.zeros(0), np.zeros(0)
    for weight, top, bottom in runs:
        a, b = np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64)
        if len(below) and not np.array_equal(b, below):
            raise ValueError("runs have different examples")
        below = b
        parts = weight * len(b) * (a - a.sum() / b.sum() * b) / b.sum()
        total = parts if not len(total) else total + parts
    return total


def parts_error(parts: ArrayLike) -> tuple[float, int]:
    """Return the standard error of a sum from what each example contributes to it, and its degrees of freedom.

    Example:
        >>> round(parts_error([-0.5, 0.5, 0.5, -0.5])[0], 3)
        0.289
    """
    found = np.asarray(parts, dtype=np.float64)
    n = len(found)
    if n < 2:
        raise ValueError("at least 2 examples are needed")
    return math.sqrt(float((found**2).sum()) / (n * (n - 1))), n - 1


def tuning_spread(means: Sequence[float], error: float, *, higher: bool = False, lost: float = 0.0, redraws: int = 2000) -> float:
    """Return how far the metric would be from that of the chosen value if tuning were repeated, as a root mean square.

    The means of the trials are redrawn around those that were measured, each with its standard error, and the best is chosen again.

    Args:
        means: The mean of the tuning metric for each value that was tried.
        error: Their standard error.
        higher: Whether higher is better.
        lost: The probability that a trial of a value diverges, so that another one is chosen.
        redraws: Number of draws.

    Example:
        >>> tuning_spread([1.0, 3.0], 0.1), round(tuning_spread([1.0, 1.1], 0.1), 2)
        (0.0, 0.05)
    """
    found, rng = np.asarray(means) * (-1.0 if higher else 1.0), np.random.default_rng(0)
    redrawn = found + error * rng.standard_normal((redraws, len(found)))
    chosen = np.where(rng.random(redrawn.shape) < lost, np.inf, redrawn).argmin(1)
    return float(np.sqrt(((found[chosen] - found.min()) ** 2).mean()))


def joint_half(parts: Iterable[tuple[float, float]], *, alpha: float) -> float:
    r"""Return the half-width of an interval of a sum of independent estimates: $\sqrt{\sum_i t_i^2 s_i^2}$, where $t_i$ is the quantile of
    Student's t for the degrees of freedom of the standard error $s_i$; these are infinite for one that is known. It covers with a
    probability of at least 1 - alpha (Banerjee 1960).

    Example:
        >>> round(joint_half([(1.0, 4), (0.5, math.inf)], alpha=0.05), 3)
        2.944
    """
    return math.sqrt(sum((float(stats.t.isf(alpha / 2, df)) * error) ** 2 for error, df in parts))
