"""Turns comparisons into verdicts: one family with simultaneous intervals."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from attnkit.ablation.statistics.comparison import NUMBERS, Comparison, Verdict, divergence_share
from attnkit.ablation.statistics.exact import divergence_p
from attnkit.ablation.statistics.power import detectable, seeds_needed, seeds_range
from attnkit.ablation.statistics.quantiles import Better, fewest_seeds, quantile_interval
from attnkit.ablation.statistics.ratio import quantile_ratio_interval, ratio_interval


def judge(
    comparisons: Sequence[Comparison],
    *,
    better: Better = "lower",
    alpha: float = 0.05,
    family: int | None = None,
    spent: float | None = None,
) -> list[Comparison]:
    """Return the comparisons, which form the declared family, with simultaneous intervals and verdicts.

    Each of m comparisons has the level alpha / m (Bonferroni). Whatever the dependence between the comparisons, all intervals cover their
    true differences with a probability of at least 1 - alpha. Every verdict is read from its interval:

    - `equivalent`: it lies within `min_effect` of 0 on both sides, whether or not it contains 0. For a percentage, this is the interval of
      the difference as a share of the reference, which excludes 0 exactly if the other interval does.
    - `better`, `worse`: it excludes 0.
    - `inconclusive`: neither of these, or the value of a failed run is missing.

    The probability of any false verdict, of a difference or of equivalence, is therefore at most alpha. If runs diverged, `p` combines
    three tests whose levels add up to that of the comparison: `divergence_p` (3/4 of it with fewer than 6 seeds, otherwise 1/2), the paired
    t test of the pairs with numbers (1/4; only if the diverged runs do not point the other way) and, with 6 seeds or more, `signed_rank_p`,
    in which a diverged run is worse than any number (1/4). The verdict is that of the test that shows a difference. If two tests show
    opposite differences, as for a variant that diverges more often but is better when it does not, it is `inconclusive`. Comparisons of
    quantiles need none of this: a run that diverged ranks last in its variant, and `quantile_interval` gives the intervals.

    Args:
        comparisons: The family.
        better: Whether a lower or a higher value is better.
        alpha: The probability of any false verdict; adjusted p-values are compared with it.
        family: The number of comparisons in the family (default: these are all of them).
        spent: The part of `alpha` that this look at the data spends (default: all).

    Example:
        >>> from attnkit.ablation.statistics import compare
        >>> c = compare("a", {0: 1.0, 1: 1.2, 2: 0.9}, reference="b", reference_runs={0: 1.5, 1: 1.6, 2: 1.5})
        >>> [(c.verdict, round(c.p_adjusted, 3)) for c in judge([c, c])]
        [('better', 0.026), ('better', 0.026)]
    """
    level = (alpha if spent is None else spent) / max(1, family or len(comparisons))
    return [_judged(c, level=level, alpha=alpha, better=better) for c in comparisons]


def _judged(c: Comparison, *, level: float, alpha: float, better: Better) -> Comparison:
    c = replace(c, level=level, p_adjusted=None if c.p is None else min(1.0, c.p * (alpha / level)))
    if c.quantile is not None:
        return _judged_by_quantile(c, c.quantile, level, better)
    if c.sd is not None and c.mean is not None:
        own = level / NUMBERS if any(c.diverged) else level
        half = float(stats.t.isf(own / 2, c.pairs - 1)) * c.sd / math.sqrt(c.pairs)
        needed, ends, sd = None, None, c.sd
        if c.min_effect and sd > 0:
            needed, ends = seeds_needed(c.min_effect / sd, alpha=own), seeds_range(c.min_effect, sd, c.pairs, alpha=own)
        smallest = detectable(c.pairs, alpha=own) * sd
        relative = None if c.base is None or any(c.diverged) else ratio_interval(c.mean, c.sd, c.base, c.pairs, level=level)
        c = replace(
            c, interval=(c.mean - half, c.mean + half), relative=relative, detectable=smallest, seeds_needed=needed, seeds_range=ends
        )
    verdict, reason = _verdict(c, better=better)
    return replace(c, verdict=verdict, reason=reason)


def _verdict(c: Comparison, *, better: Better) -> tuple[Verdict, str]:
    assert c.level is not None
    runs = c.planned * c.cells
    if any(c.failed):
        return "inconclusive", _missing(c)
    if c.p is None:
        return "inconclusive", f"{c.pairs} pairs are too few for a test"
    shown = c.p < c.level
    if any(c.diverged):
        text = f"{c.diverged[0]} of {runs} runs diverged, and {c.diverged[1]} of {c.reference}; a diverged run loses"
        if all(sides := [p < c.level for p in c.p_sides]):
            return "inconclusive", f"{text}, but another test shows the opposite"
        return ("better" if sides[0] else "worse" if sides[1] else "inconclusive"), text + ("" if any(sides) else _more_seeds(c))
    if _is_small(c):
        return "equivalent", f"the difference is shown to be smaller than {_margin(c)}"
    if shown:
        assert c.mean is not None
        return ("better" if (c.mean < 0) == (better == "lower") else "worse"), "the difference is shown not to be zero"
    smallest = f": {c.pairs} pairs show a difference of {c.detectable:.3g} or more" if c.detectable else ""
    return "inconclusive", f"neither a difference nor equivalence is shown{smallest}{_hint(c)}{_without_share(c)}"


def _more_seeds(c: Comparison) -> str:
    """Say how many seeds would show that one side diverges more often, if the other never does and both continue as before."""
    if c.cells > 1 or min(c.diverged) or c.level is None:
        return ""
    for seeds in range(c.planned + 1, 101):
        lost = max(c.diverged) * seeds // c.planned
        if divergence_share(seeds) * divergence_p(lost, 0, seeds) < c.level:
            return f"; {seeds} seeds would show it, if runs diverge as often"
    return ""


def _is_small(c: Comparison) -> bool:
    """Return whether the interval shows that the difference does not matter."""
    interval, most = (c.interval, c.min_effect) if c.min_share is None else (c.relative, c.min_share)
    return interval is not None and most is not None and max(map(abs, interval)) < most


def _margin(c: Comparison) -> str:
    if c.min_share is None:
        return f"{c.min_effect:.3g}"
    return f"{100 * c.min_share:g}% of the {'reference' if c.kind == 'difference' else 'baseline'}"


def _missing(c: Comparison) -> str:
    return f"{sum(c.failed)} of {2 * c.planned * c.cells} runs have no value; run or retry them"


def _judged_by_quantile(c: Comparison, share: float, level: float, better: Better) -> Comparison:
    if any(c.failed):
        return replace(c, mean=None, reason=_missing(c))
    if c.pairs < (needed := fewest_seeds(share, level=level)):
        return replace(c, mean=None, reason=f"{c.pairs} seeds are too few to show a difference of {share:g} quantiles: it takes {needed}")
    ours, theirs = map(np.array, c.sides)
    low, high = quantile_interval(ours, theirs, share, level=level)
    relative = None if c.min_share is None else quantile_ratio_interval(ours, theirs, share, level=level)
    if better == "higher":
        c = replace(c, interval=(-high, -low), relative=relative and (-relative[1], -relative[0]))
    else:
        c = replace(c, interval=(low, high), relative=relative)
    verdict: Verdict = "better" if high < 0 else "worse" if low > 0 else "inconclusive"
    reason = (
        f"the {share:g} quantiles are shown to differ"
        if verdict != "inconclusive"
        else f"neither a difference nor equivalence is shown{_without_share(c)}"
    )
    if c.mean is not None and _is_small(c):
        verdict, reason = "equivalent", f"the difference is shown to be smaller than {_margin(c)}"
    if any(c.diverged):
        runs = c.planned * c.cells
        reason += f"; {c.diverged[0]} of {runs} runs diverged, and {c.diverged[1]} of {c.reference}; diverged runs rank last"
    return replace(c, verdict=verdict, reason=reason)


def _without_share(c: Comparison) -> str:
    """Say why a difference is unknown as a share of the reference, although the margin is a share."""
    if c.min_share is None or c.relative is not None:
        return ""
    why = "its mean cannot be told from 0" if c.quantile is None else "its values, or those compared with it, have both signs"
    return f"; {_margin(c)} is not known, as {why}: use more seeds, or a min_effect in units of the metric"


def _hint(c: Comparison) -> str:
    """Say how many seeds would show the smallest difference that matters, with the range that the few pairs leave open."""
    if c.seeds_range is None:
        return ""
    point, low, high = ("more than 10,000" if n is None else f"{n:,}" for n in (c.seeds_needed, *c.seeds_range))
    return f"; {point} seeds ({low} to {high}, as {c.pairs} pairs estimate the spread) would show one of {_margin(c)}"
