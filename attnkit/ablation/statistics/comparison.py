"""Turns runs into comparisons, paired by seed; every run counts.

The values of a variant are a mapping from seed to value. NaN or infinity stands for a run that diverged: an outcome worse than any number.
None stands for a run that failed for another reason: its value is unknown. Neither is dropped or imputed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from attnkit.ablation.statistics.exact import divergence_p, sign_flip_p, signed_rank_p
from attnkit.ablation.statistics.quantiles import Better, badness, quantile_p, reached
from attnkit.ablation.statistics.ratio import Base, base_of, share_of

Runs = Mapping[int, float | None]
Verdict = Literal["better", "worse", "equivalent", "inconclusive"]

FLOAT32 = 2.0**-23  # the relative resolution of metrics, which are computed in single precision
RANKED = 6  # the fewest seeds with which a signed-rank test can reach a p-value below 0.05
NUMBERS = 4  # if runs diverged, the comparison of numbers gets 1 / NUMBERS of the level


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A variant against its reference, or another contrast of variants, paired by seed. Differences are variant minus reference.

    Attributes:
        variant: The name of the variant.
        reference: The name of the reference.
        planned: The number of seeds.
        cells: The number of variants that each side averages over.
        pairs: The number of seeds for which both sides have a number or, with a quantile, an outcome.
        diverged: The numbers of runs of the variant and of the reference that diverged.
        failed: The numbers of runs of the variant and of the reference that have no value.
        min_effect: The smallest difference that matters, for equivalence; an estimate if it is a share of the reference.
        min_share: That share; None if `min_effect` is not a share.
        base: The size of the reference, which the share is of; None without a share, or with a quantile.
        quantile: The quantile that is compared, counted from the best run; None: means are compared.
        sides: With a quantile, the badness of both sides by seed; see `attnkit.ablation.statistics.quantiles`.
        mean: The mean difference; None if it would hide runs that diverged. With a quantile, the difference of the two quantiles; None if
            one of them falls on a run that diverged, or there are too few seeds for an interval.
        sd: The standard deviation of the differences; at least the resolution of the metric.
        effect: The mean in units of `sd`, with Hedges' correction for few pairs; None with two pairs, for which there is no correction.
        wins: The share of pairs in which the variant is better; a tie counts half, and a diverged run loses.
        p: The p-value of the paired t test; if a run diverged, of the combination of tests described in `judge`; with a quantile, the
            smallest level whose interval excludes 0.
        p_sides: If a run diverged, the smallest p-values of the tests that find the variant better and of those that find it worse.
        p_exact: The p-value of the sign-flip test over all 2^n signs, with 6 to 12 pairs.
        level: This comparison's part of alpha in its family.
        interval: The interval, simultaneous with the others of the family; unless runs diverged, a difference is shown if and only if it
            excludes 0.
        relative: With `min_share`, the interval of the difference as a share of the reference, which excludes 0 if and only if `interval`
            does; None if the size of the reference cannot be told from 0.
        p_adjusted: `p`, scaled so that it is below alpha if and only if a difference is shown.
        detectable: The smallest difference that this number of pairs, with this `sd` and level, detects with a power of 0.8.
        seeds_needed: The number of seeds that would detect a difference of `min_effect` with that power.
        seeds_range: `seeds_needed` at both ends of the 90 % interval of the sd; None for more than 10,000.
        kind: A difference of two sides, or an interaction, for which neither sign counts as better.
        verdict: Set by `judge`.
        reason: The reason for the verdict.
    """

    variant: str
    reference: str
    planned: int
    cells: int = 1
    pairs: int
    diverged: tuple[int, int] = (0, 0)
    failed: tuple[int, int] = (0, 0)
    min_effect: float | None = None
    min_share: float | None = None
    base: Base | None = None
    quantile: float | None = None
    sides: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    mean: float | None = None
    sd: float | None = None
    effect: float | None = None
    wins: float | None = None
    p: float | None = None
    p_sides: tuple[float, float] = (1.0, 1.0)
    p_exact: float | None = None
    level: float | None = None
    interval: tuple[float, float] | None = None
    relative: tuple[float, float] | None = None
    p_adjusted: float | None = None
    detectable: float | None = None
    seeds_needed: int | None = None
    seeds_range: tuple[int | None, int | None] | None = None
    kind: Literal["difference", "interaction"] = "difference"
    verdict: Verdict = "inconclusive"
    reason: str = ""


def compare(
    variant: str,
    runs: Runs,
    *,
    reference: str,
    reference_runs: Runs,
    better: Better = "lower",
    min_effect: float | str | None = None,
    resolution: float | None = None,
    quantile: float | None = None,
) -> Comparison:
    """Compare a variant with its reference. `judge` sets the verdict, which depends on the number of comparisons.

    Args:
        variant: The name of the variant.
        runs: The values of the variant by seed.
        reference: The name of the reference.
        reference_runs: The values of the reference by seed.
        better: Whether a lower or a higher value is better.
        min_effect: The smallest difference that matters, for equivalence; or a percentage of the reference, such as `2%`.
        resolution: The smallest step of the metric, such as 1 / test examples (default: that of single precision).
        quantile: The quantile to compare, counted from the best run, such as 0.9 for what nine in ten runs reach; diverged runs come
            last. None: compare means.

    Example:
        >>> c = compare("a", {0: 1.0, 1: 1.2, 2: 0.9}, reference="b", reference_runs={0: 1.5, 1: 1.6, 2: 1.5})
        >>> round(c.mean, 3), round(c.p, 3), c.wins
        (-0.5, 0.013, 1.0)
    """
    cells = [(1.0, runs), (-1.0, reference_runs)]
    return contrast(variant, cells, reference=reference, better=better, min_effect=min_effect, resolution=resolution, quantile=quantile)


def contrast(
    variant: str,
    cells: Sequence[tuple[float, Runs]],
    *,
    reference: str,
    better: Better = "lower",
    min_effect: float | str | None = None,
    resolution: float | None = None,
    quantile: float | None = None,
    relative_to: Runs | None = None,
) -> Comparison:
    """Compare the two sides of a weighted sum of variants, given as pairs of a weight (positive on the variant's side) and values by seed.

    The other arguments are those of `compare`. With a quantile, each side is one number per seed, of which the quantile is taken. A
    percentage refers to the reference's side, or to the values `relative_to`.

    Example:
        >>> y = {0: 1.0, 1: 2.0}
        >>> contrast("half", [(0.5, y), (0.5, y), (-1.0, {0: 0.5, 1: 1.0})], reference="b").mean
        0.75
    """
    if quantile is not None and not 0 < quantile < 1:
        raise ValueError(f"quantile must be between 0 and 1, but is {quantile}")
    seeds = sorted({seed for _, runs in cells for seed in runs})
    rows = {seed: [(weight, _finite(runs.get(seed))) for weight, runs in cells] for seed in seeds}
    known = {seed: [(w, y) for w, y in row if y is not None] for seed, row in rows.items() if all(y is not None for _, y in row)}
    scores = np.array([_score(row, better) for row in known.values()])  # positive if the variant is better; infinite if one side diverged
    numbers = {seed: row for seed, row in known.items() if not any(math.isnan(y) for _, y in row)}
    d = np.array([sum(w * y for w, y in row) for row in numbers.values()], dtype=np.float64)
    sides = [[y for row in rows.values() for w, y in row if (w > 0) == ours] for ours in (True, False)]
    result = Comparison(
        variant=variant,
        reference=reference,
        planned=len(seeds),
        cells=max(1, len(cells) // 2),
        pairs=len(d),
        diverged=(_count_nan(sides[0]), _count_nan(sides[1])),
        failed=(sides[0].count(None), sides[1].count(None)),
        min_effect=None if isinstance(min_effect, str) else min_effect,
        min_share=share_of(min_effect),
        wins=float((np.sign(scores) + 1).mean() / 2) if len(scores) else None,
        mean=float(d.mean()) if len(d) else None,
    )
    if quantile is not None:
        return _with_quantiles(result, list(known.values()), quantile, better)
    if len(d) >= 2:
        largest = max(abs(w * y) for row in numbers.values() for w, y in row)
        result = _with_tests(result, d, least=FLOAT32 * largest if resolution is None else resolution)
        if result.min_share is not None:
            given = {seed: -sum(w * y for w, y in row if w < 0) for seed, row in numbers.items()} if relative_to is None else relative_to
            references = np.array([given.get(seed) for seed in numbers], dtype=np.float64)
            if np.isfinite(references).all():  # not if runs of the reference have no number
                base = base_of(d, references)
                result = replace(result, base=base, min_effect=result.min_share * base.mean)
    return _with_divergence(result, scores) if any(result.diverged) else result


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else math.nan


def _score(row: Sequence[tuple[float, float]], better: Better) -> float:
    lost, won = any(math.isnan(y) and w > 0 for w, y in row), any(math.isnan(y) and w < 0 for w, y in row)
    if lost or won:
        return 0.0 if lost and won else -math.inf if lost else math.inf
    return (-1.0 if better == "lower" else 1.0) * sum(w * y for w, y in row)


def _count_nan(values: Sequence[float | None]) -> int:
    return sum(v is not None and math.isnan(v) for v in values)


def _with_tests(result: Comparison, d: np.ndarray, *, least: float) -> Comparison:
    n, mean, sd = len(d), float(d.mean()), max(float(d.std(ddof=1)), least)
    p = 1.0 if mean == 0 else float(2 * stats.t.sf(abs(mean) / sd * math.sqrt(n), n - 1)) if sd > 0 else 0.0
    return replace(
        result,
        sd=sd,
        p=p,
        p_exact=sign_flip_p(d) if RANKED <= n <= 12 else None,
        effect=None if n == 2 else mean and mean / sd * (1 - 3 / (4 * (n - 1) - 1)),  # 0 if all values, and hence the sd, are 0
    )


def _with_quantiles(c: Comparison, rows: Sequence[Sequence[tuple[float, float]]], share: float, better: Better) -> Comparison:
    ours, theirs = ([sum(abs(w) * y for w, y in row if (w > 0) == side) for row in rows] for side in (True, False))
    a, b = badness(ours, better=better), badness(theirs, better=better)
    typical, reference = (reached(side, share, better=better) if rows else math.nan for side in (ours, theirs))
    difference = typical - reference
    return replace(
        c,
        min_effect=c.min_effect if c.min_share is None or math.isnan(reference) else c.min_share * abs(reference),
        quantile=share,
        sides=(tuple(a.tolist()), tuple(b.tolist())),
        pairs=len(rows),
        mean=None if math.isnan(difference) else difference,
        p=float(quantile_p(a, b, share)) if rows else None,
    )


def divergence_share(seeds: int) -> float:
    """Return the factor for p-values of the test of divergences: the inverse of its share of the level.

    Example:
        >>> round(divergence_share(5), 2), divergence_share(6)
        (1.33, 2.0)
    """
    return 4 / 3 if seeds < RANKED else 2.0


def _with_divergence(c: Comparison, scores: np.ndarray) -> Comparison:
    """Account for diverged runs in a comparison: an outcome in addition to the numbers of the other runs; see `judge`."""
    lost, won = int((scores == -math.inf).sum()), int((scores == math.inf).sum())
    tests: list[tuple[float, float]] = (
        [(won - lost, divergence_share(len(scores)) * divergence_p(lost, won, len(scores)))] if len(scores) else []
    )
    if len(scores) >= RANKED:
        known = scores[scores != 0]
        tests.append(((np.sign(known) * stats.rankdata(np.abs(known))).sum(), NUMBERS * signed_rank_p(scores)))
    rest = float(scores[np.isfinite(scores)].sum())
    hidden = (lost and (won or rest >= 0)) or (won and rest <= 0)  # the mean of the other runs would contradict those that diverged
    if c.p is not None and not hidden:
        tests.append((rest, NUMBERS * c.p))
    better, worse = (min([1.0, *(p for side, p in tests if sign * side > 0)]) for sign in (1, -1))
    c = replace(c, p_exact=None, p=min(better, worse), p_sides=(better, worse))
    return replace(c, mean=None, sd=None, effect=None) if hidden else c
