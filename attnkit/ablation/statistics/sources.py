"""Sources of noise besides seeds: the test examples, which are a sample too, and the choice made by tuning."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


def examples_error(runs: Iterable[tuple[float, ArrayLike, ArrayLike]]) -> tuple[float, int]:
    r"""Return the standard error, over test examples, of a weighted sum of metrics of runs on them, and its degrees of freedom.

    A metric is a quotient of sums over examples, $R = \sum_e a_e / \sum_e b_e$, such as wrong tokens and tokens. To first order, example e
    contributes $u_e = E (a_e - R b_e) / \sum b$, where E is the number of examples. The contributions to the weighted sum are summed over
    its runs example by example, so that failures on the same examples cancel (Miller 2024); the standard error is that of their mean.

    Args:
        runs: The weight of each run and its two sums for each example, or each random group of examples, in the same order.

    Raises:
        ValueError: Runs have different examples, or there are fewer than 2.

    Example:
        >>> ours, theirs = [0, 0, 1, 0], [1, 0, 1, 1]
        >>> error, df = examples_error([(1.0, ours, [1] * 4), (-1.0, theirs, [1] * 4)])
        >>> round(error, 3), df
        (0.289, 3)
    """
    return parts_error(examples_parts(runs))


def examples_parts(runs: Iterable[tuple[float, ArrayLike, ArrayLike]]) -> np.ndarray:
    """Return the contribution of each example to a weighted sum of metrics, [examples], with mean 0; see `examples_error`.

    Contributions to sums over the same examples, such as those of a model at several sizes, may be added. So may those over equally many
    different examples, which are independent.

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
    """Return the standard error of a sum, and its degrees of freedom, from the contribution of each example.

    Example:
        >>> round(parts_error([-0.5, 0.5, 0.5, -0.5])[0], 3)
        0.289
    """
    found = np.asarray(parts, dtype=np.float64)
    n = len(found)
    if n < 2:
        raise ValueError("at least 2 examples are needed")
    return math.sqrt(float((found**2).sum()) / (n * (n - 1))), n - 1


def tuning_spread(means: Sequence[float], error: float, *, higher: bool = False, lost: float = 0.0) -> float:
    r"""Return the root-mean-square distance of the metric from that of the chosen value if tuning were repeated.

    The trials' means vary around the measured ones with the standard error, and the best is chosen again.

    Equation:
        $$\sqrt{\sum_i p_i (m_i - \min m)^2}, \quad
        p_i = (1 - q) \int \phi(z) \prod_{j \ne i} \left(q + (1 - q) \Phi\left(\frac{m_j - m_i}{s} - z\right)\right) dz$$
        where the means m have the standard error s, each is lost with probability q, and lower is better; if all are lost, the first is
        chosen

    Args:
        means: The mean of the tuning metric for each value tried.
        error: Their standard error.
        higher: Whether higher is better.
        lost: The probability that a trial diverges, so that its value is not chosen.

    Example:
        >>> tuning_spread([1.0, 9.0], 0.1), round(tuning_spread([1.0, 1.1], 0.1), 3)
        (0.0, 0.049)
    """
    found, z = np.asarray(means) * (-1.0 if higher else 1.0), np.linspace(-9.0, 9.0, 181)
    density = stats.norm.pdf(z) * (z[1] - z[0])  # 181 points suffice for the integral: the integrand is smooth on this scale
    chosen = np.zeros(len(found))  # the probability that each is chosen
    chosen[0] = lost ** len(found)
    for i in range(len(found)):
        with np.errstate(over="ignore"):
            gaps = (np.delete(found, i) - found[i]) / max(error, np.finfo(float).tiny)
        others = lost + (1 - lost) * stats.norm.cdf(gaps[:, None] - z)
        chosen[i] += (1 - lost) * float(others.prod(0) @ density)
    return math.sqrt(float((chosen * (found - found.min()) ** 2).sum()))


def joint_half(parts: Iterable[tuple[float, float]], *, alpha: float) -> float:
    r"""Return the half-width of an interval for a sum of independent estimates, $\sqrt{\sum_i t_i^2 s_i^2}$, where $t_i$ is the quantile of
    Student's t for the degrees of freedom of the standard error $s_i$ (infinite if it is known exactly). The interval covers with a
    probability of at least 1 - alpha (Banerjee 1960).

    Example:
        >>> round(joint_half([(1.0, 4), (0.5, math.inf)], alpha=0.05), 3)
        2.944
    """
    return math.sqrt(sum((float(stats.t.isf(alpha / 2, df)) * error) ** 2 for error, df in parts))
