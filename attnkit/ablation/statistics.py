"""From the runs of a study to verdicts: paired by seed, adjusted for multiple comparisons, with every run counted.

The values of a variant are a mapping from seed to value. NaN is a run that diverged: an outcome, worse than any number.
None is a run that failed for another reason: its value is unknown. Neither is dropped or imputed.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import optimize, stats

Runs = Mapping[int, float | None]
Better = Literal["lower", "higher"]
Verdict = Literal["better", "worse", "equivalent", "inconclusive"]

POWER = 0.8
MOST_SEEDS = 10_000
"""The most seeds that a reason suggests."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A variant against its reference, paired by seed. Differences are variant minus reference.

    Attributes:
        variant: Its name.
        reference: The other's name.
        planned: Seeds of the two.
        pairs: Seeds for which both have a number.
        diverged: How many runs of the variant, and of the reference, diverged.
        failed: How many runs of each have no value.
        min_effect: The smallest difference that matters, for equivalence.
        mean: Of the differences.
        interval: Of the mean: the confidence interval of the paired t test.
        sd: Of the differences.
        effect: The mean in units of `sd`, with Hedges' correction for few pairs.
        wins: Share of pairs in which the variant is better; a tie counts half, and a diverged run loses.
        p: Of the paired t test; of the sign test if a run diverged.
        p_exact: Of the sign-flip test over all 2^n signs, if its smallest possible value is below alpha.
        p_equivalent: Of the two one-sided t tests against `min_effect`.
        p_adjusted: `p` after Holm's correction over the family.
        p_equivalent_adjusted: `p_equivalent` likewise.
        detectable: The smallest difference that this number of pairs, with this `sd`, shows with a power of 0.8 after the correction.
        seeds_needed: The number of seeds that would show a difference of `min_effect`, likewise.
        verdict: Set by `judge`.
        reason: For the verdict.
    """

    variant: str
    reference: str
    planned: int
    pairs: int
    diverged: tuple[int, int] = (0, 0)
    failed: tuple[int, int] = (0, 0)
    min_effect: float | None = None
    mean: float | None = None
    interval: tuple[float, float] | None = None
    sd: float | None = None
    effect: float | None = None
    wins: float | None = None
    p: float | None = None
    p_exact: float | None = None
    p_equivalent: float | None = None
    p_adjusted: float | None = None
    p_equivalent_adjusted: float | None = None
    detectable: float | None = None
    seeds_needed: int | None = None
    verdict: Verdict = "inconclusive"
    reason: str = ""


def compare(
    variant: str,
    runs: Runs,
    *,
    reference: str,
    reference_runs: Runs,
    better: Better = "lower",
    min_effect: float | None = None,
    alpha: float = 0.05,
) -> Comparison:
    """Measure one variant against its reference. The verdict is `judge`'s, which knows how many comparisons there are.

    Args:
        variant: Its name.
        runs: Its values by seed.
        reference: The other's name.
        reference_runs: The other's values.
        better: Whether a lower or a higher value is better.
        min_effect: The smallest difference that matters, for equivalence.
        alpha: The level of tests; the interval has 1 - alpha.

    Example:
        >>> c = compare("a", {0: 1.0, 1: 1.2, 2: 0.9}, reference="b", reference_runs={0: 1.5, 1: 1.6, 2: 1.5})
        >>> round(c.mean, 3), round(c.p, 3), c.wins
        (-0.5, 0.013, 1.0)
    """
    seeds = sorted({*runs, *reference_runs})
    ours, theirs = [runs.get(seed) for seed in seeds], [reference_runs.get(seed) for seed in seeds]
    known = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    differences = np.array([a - b for a, b in known if not (math.isnan(a) or math.isnan(b))], dtype=np.float64)
    sign = -1.0 if better == "lower" else 1.0
    outcomes = [_outcome(a, b, sign) for a, b in known]
    result = Comparison(
        variant=variant,
        reference=reference,
        planned=len(seeds),
        pairs=len(differences),
        diverged=(_count_nan(ours), _count_nan(theirs)),
        failed=(ours.count(None), theirs.count(None)),
        min_effect=min_effect,
        wins=(outcomes.count(1) + outcomes.count(0) / 2) / len(outcomes) if outcomes else None,
    )
    if len(differences) >= 1:
        result = replace(result, mean=float(differences.mean()))
    if len(differences) >= 2:
        result = _with_tests(result, differences, min_effect=min_effect, alpha=alpha)
    if any(result.diverged):  # a mean over the survivors would favour a variant that diverges
        decided = [o for o in outcomes if o != 0]
        p = float(stats.binomtest(decided.count(1), len(decided)).pvalue) if decided else 1.0
        result = replace(result, p=p, p_exact=None, p_equivalent=None)
    return result


def _outcome(ours: float, theirs: float, sign: float) -> int:
    """Return 1 if ours wins, -1 if it loses and 0 for a tie; a diverged run loses."""
    if math.isnan(ours) or math.isnan(theirs):
        return int(math.isnan(theirs)) - int(math.isnan(ours))
    return int(np.sign(sign * (ours - theirs)))


def _count_nan(values: Sequence[float | None]) -> int:
    return sum(v is not None and math.isnan(v) for v in values)


def _with_tests(result: Comparison, d: np.ndarray, *, min_effect: float | None, alpha: float) -> Comparison:
    n, mean, sd = len(d), float(d.mean()), float(d.std(ddof=1))
    if sd <= 1e-12 * float(np.abs(d).max(initial=0.0)):  # no spread: a t test divides by it, the sign-flip test does not
        p = sign_flip_p(d) if mean else 1.0
        inside = None if min_effect is None else (2.0**-n if abs(mean) < min_effect else 1.0)
        return replace(result, sd=0.0, interval=(mean, mean), p=p, p_exact=_exact(d, alpha), p_equivalent=inside)
    test = stats.ttest_1samp(d, 0.0)  # on differences: scipy's ttest_rel
    low, high = test.confidence_interval(1 - alpha)
    inside = None
    if min_effect is not None:
        above = stats.ttest_1samp(d, -min_effect, alternative="greater").pvalue
        below = stats.ttest_1samp(d, min_effect, alternative="less").pvalue
        inside = float(max(above, below))
    return replace(
        result,
        sd=sd,
        interval=(float(low), float(high)),
        p=float(test.pvalue),
        p_exact=_exact(d, alpha),
        p_equivalent=inside,
        effect=mean / sd * (1 - 3 / (4 * (n - 1) - 1)),
    )


def _exact(d: np.ndarray, alpha: float) -> float | None:
    return sign_flip_p(d) if 2.0 ** (1 - len(d)) < alpha and len(d) <= 16 else None


def sign_flip_p(differences: np.ndarray) -> float:
    """Return the exact p-value of the hypothesis that each difference is equally likely to have the other sign.

    Example:
        >>> sign_flip_p(np.array([1.0, 2.0, 3.0, 1.5, 2.5, 0.5]))  # the smallest with six: 2 / 2^6
        0.03125
    """
    result = stats.permutation_test(
        (differences,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    return float(result.pvalue)


def judge(comparisons: Sequence[Comparison], *, better: Better = "lower", alpha: float = 0.05) -> list[Comparison]:
    """Return the comparisons, which are the declared family, with Holm's correction over all of them and with their verdicts.

    - `equivalent`: both one-sided tests show that the difference is smaller than `min_effect`, whether or not it is zero.
    - `better`, `worse`: the difference is not zero.
    - `inconclusive`: neither is shown, or the value of a failed run is missing.

    Example:
        >>> c = compare("a", {0: 1.0, 1: 1.2, 2: 0.9}, reference="b", reference_runs={0: 1.5, 1: 1.6, 2: 1.5})
        >>> [(c.verdict, round(c.p_adjusted, 3)) for c in judge([c, c])]
        [('better', 0.026), ('better', 0.026)]
    """
    adjusted, equivalent = holm([c.p for c in comparisons]), holm([c.p_equivalent for c in comparisons])
    level = alpha / max(1, len(comparisons))
    judged = []
    for c, p, q in zip(comparisons, adjusted, equivalent, strict=True):
        if c.sd is not None and c.pairs >= 2:
            needed = seeds_needed(c.min_effect / c.sd, alpha=level) if c.min_effect and c.sd > 0 else None
            c = replace(c, detectable=detectable(c.pairs, alpha=level) * c.sd, seeds_needed=needed)
        verdict, reason = _verdict(c, p, q, better=better, alpha=alpha)
        judged.append(replace(c, p_adjusted=p, p_equivalent_adjusted=q, verdict=verdict, reason=reason))
    return judged


def _verdict(c: Comparison, p: float | None, q: float | None, *, better: Better, alpha: float) -> tuple[Verdict, str]:
    if any(c.failed):
        return "inconclusive", f"{sum(c.failed)} of {2 * c.planned} runs have no value; run or retry them"
    if p is None:
        return "inconclusive", f"{c.pairs} pairs are too few for a test"
    if any(c.diverged):
        text = f"{c.diverged[0]} of {c.planned} runs diverged, and {c.diverged[1]} of {c.reference}; by the sign test, in which these lose"
        assert c.wins is not None
        return ("inconclusive" if p >= alpha else "better" if c.wins > 0.5 else "worse"), text
    if q is not None and q < alpha:
        return "equivalent", f"the difference is shown to be smaller than {c.min_effect:.3g}"
    if p < alpha:
        assert c.mean is not None
        return ("better" if (c.mean < 0) == (better == "lower") else "worse"), "the difference is shown not to be zero"
    hint = f"; {c.seeds_needed} seeds would show one of {c.min_effect:.3g}" if c.seeds_needed is not None else ""
    smallest = f": {c.pairs} pairs show a difference of {c.detectable:.3g} or more" if c.detectable else ""
    return "inconclusive", f"neither a difference nor equivalence is shown{smallest}{hint}"


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Return p-values adjusted by Holm's method; None stays None, and does not count.

    Example:
        >>> holm([0.01, None, 0.04])
        [0.02, None, 0.04]
    """
    known = np.array([x for x in p if x is not None], dtype=np.float64)
    order = known.argsort()
    adjusted = np.empty_like(known)
    adjusted[order] = np.maximum.accumulate(known[order] * np.arange(len(known), 0, -1)).clip(max=1.0)
    values = iter(adjusted.tolist())
    return [None if x is None else next(values) for x in p]


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


def _power(effect: float, pairs: int, alpha: float) -> float:
    """Return the power of a two-sided paired t test."""
    limit, shift = stats.t.isf(alpha / 2, pairs - 1), effect * math.sqrt(pairs)
    power = float(stats.nct.sf(limit, pairs - 1, shift) + stats.nct.cdf(-limit, pairs - 1, shift))
    return 1.0 if math.isnan(power) else power  # scipy's noncentral t gives up where the power is 1
