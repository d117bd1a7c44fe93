"""Differences relative to the reference, whose mean is unknown and estimated from the same runs."""

import math
import re
from dataclasses import dataclass

import numpy as np
from scipy import stats

from attnkit.ablation.statistics.quantiles import quantile_interval


@dataclass(frozen=True, kw_only=True)
class Base:
    """The size of the reference, and its covariance with the differences of the same pairs."""

    mean: float  # of the reference's values, with the sign that makes it positive
    variance: float  # of the reference's values
    covariance: float  # of the reference's values, with that sign, and the differences


def share_of(min_effect: float | str | None) -> float | None:
    """Return a percentage as a fraction; None if `min_effect` is not a percentage.

    Example:
        >>> share_of("2%"), share_of(0.02)
        (0.02, None)
    """
    if not isinstance(min_effect, str):
        return None
    if not re.fullmatch(r"\d+(\.\d+)?%", min_effect):
        raise ValueError(f"a percentage must be written as in '2%', but is {min_effect!r}")
    return float(min_effect.rstrip("%")) / 100


def base_of(differences: np.ndarray, references: np.ndarray) -> Base:
    """Return the size of the reference from its values in at least two pairs."""
    values = references * (-1.0 if references.mean() < 0 else 1.0)
    [[_, covariance], [_, variance]] = np.cov(differences, values)
    return Base(mean=float(values.mean()), variance=float(variance), covariance=float(covariance))


def spread_beside(sd: float, base: Base, share: float) -> float:
    """Return the standard deviation of the differences minus a share of the reference, from the sd of the differences."""
    return math.sqrt(max(0.0, sd**2 - 2 * share * base.covariance + share**2 * base.variance))


def ratio_interval(mean: float, sd: float, base: Base, pairs: int, *, level: float) -> tuple[float, float] | None:
    r"""Return the interval of a mean difference as a share of the reference's mean (Fieller 1954); None if that mean may be 0.

    It contains the shares r for which a paired t test of $d_i - r x_i$ does not reject a mean of 0, where $d_i$ are the differences and
    $x_i$ the values of the reference. It therefore excludes 0 exactly if the interval of the mean difference does, and lies within q of 0
    on both sides exactly if two one-sided tests show that $d - q x$ is below 0 and $d + q x$ above 0.

    Example:
        >>> d, x = np.array([0.1, 0.12, 0.11]), np.array([2.0, 2.4, 2.2])
        >>> base = base_of(d, x)
        >>> [round(float(end), 3) for end in ratio_interval(d.mean(), d.std(ddof=1), base, 3, level=0.05)]
        [0.05, 0.05]
        >>> ratio_interval(d.mean(), d.std(ddof=1), base_of(d, np.array([-1.0, 0.0, 1.0])), 3, level=0.05)
    """
    factor = float(stats.t.isf(level / 2, pairs - 1)) ** 2 / pairs
    square = base.mean**2 - factor * base.variance
    if square <= 0:
        return None
    middle = (mean * base.mean - factor * base.covariance) / square
    half = math.sqrt(max(0.0, middle**2 - (mean**2 - factor * sd**2) / square))
    return middle - half, middle + half


def quantile_ratio_interval(ours: np.ndarray, theirs: np.ndarray, share: float, *, level: float) -> tuple[float, float] | None:
    """Return the interval of a difference of quantiles as a share of the reference's; None if values have both signs.

    The logarithm of a quantile is the quantile of the logarithms, so the ratio of two quantiles has the interval of a shift between
    logarithms. The arguments are those of `quantile_interval`.

    Example:
        >>> low, high = quantile_ratio_interval(np.arange(8.0, 16.0), np.arange(32.0, 40.0), 0.5, level=0.05)
        >>> round(low, 2), round(high, 2)
        (-0.79, -0.53)
    """
    values = np.concatenate([ours, theirs])
    known = values[np.isfinite(values)]
    sign = -1.0 if (known < 0).any() else 1.0
    if (sign * known < 0).any():
        return None
    with np.errstate(divide="ignore", over="ignore"):
        a, b = (np.where(np.isinf(side), np.inf, sign * np.log(np.abs(side))) for side in (ours, theirs))
        low, high = (float(sign * np.expm1(sign * end)) for end in quantile_interval(a, b, share, level=level))
    return low, high
