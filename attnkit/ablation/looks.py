"""Looks at the results: the number of seeds of each and the part of alpha it spends, planned before the first run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from attnkit.ablation.question import Look
from attnkit.ablation.sections import Decide
from attnkit.ablation.spec import StudySpec
from attnkit.ablation.statistics import Comparison, power, spread_beside
from attnkit.registry import ConfigurationError

SIMULATED = 2000  # number of simulated studies in a forecast
FORECAST = (0.0, 0.5, 1.0, 2.0)  # true differences in a forecast, in units of the sd of differences


def looks(study: StudySpec, asked: Mapping[str, Any]) -> tuple[Look, ...]:
    """Return the looks of a study: those planned by `decide`, or one with the seeds it began with, followed by those that were paid for.

    `asked` is the study's question as recorded, or empty; see `attnkit.ablation.question.read_question`.
    """
    if study.decide is not None:
        return planned(study.decide, study.alpha)
    first = len(asked.get("seeds_at_start", study.seeds))
    return (Look(seeds=first, alpha=study.alpha), *(Look(**paid) for paid in asked.get("looks_added", ())))


def planned(decide: Decide, alpha: float) -> tuple[Look, ...]:
    r"""Return the looks of `decide`. Their levels add up to alpha, so no constants and no assumption about their dependence are needed.

    With the share t_k = n_k / n_K of the seeds, look k of K spends S(t_k) - S(t_{k-1}) (Lan and DeMets 1983), where S is
    alpha ln(1 + (e - 1) t) for `pocock`, and 2 - 2 \Phi(z_{alpha/2} / \sqrt t) for `obrien_fleming`, which spends little early.

    Example:
        >>> [(look.seeds, round(look.alpha, 4)) for look in planned(Decide(max_seeds=20), 0.05)]
        [(3, 0.0115), (6, 0.0093), (11, 0.0125), (20, 0.0167)]
    """
    seeds = decide.at
    spent = [0.0]
    for n in seeds:
        share = n / seeds[-1]
        normal = 2 * float(stats.norm.sf(stats.norm.isf(alpha / 2) / math.sqrt(share)))
        spent.append(alpha * math.log(1 + (math.e - 1) * share) if decide.spending == "pocock" else normal)
    found = tuple(Look(seeds=n, alpha=after - before) for n, before, after in zip(seeds, spent, spent[1:], strict=False))
    if nothing := [look.seeds for look in found if look.alpha <= 0]:
        raise ConfigurationError(f"decide: {decide.spending} spends no alpha on the look at {nothing[0]} seeds: remove it from looks")
    return found


def chance(c: Comparison, last: Look, family: int) -> float:
    """Return an optimistic estimate of the probability that the last look decides an open contrast; 1 if it cannot be estimated.

    It assumes the smallest sd and the most favourable mean that are compatible with the data (80 % and one standard error). Stopping for
    futility can miss a verdict but never creates a false one.
    """
    if c.mean is None or c.sd is None or not c.sd or any(c.diverged) or c.pairs < 2:
        return 1.0
    level, n = last.alpha / family, last.seeds
    narrow = math.sqrt((c.pairs - 1) / float(stats.chi2.isf(0.1, c.pairs - 1)))
    limit, found = float(stats.t.isf(level / 2, n - 1)), 0.0
    for errors in (-1.0, 0.0, 1.0):
        mean = abs(c.mean) + errors * c.sd / math.sqrt(c.pairs)
        inside = -1.0
        for side in (-1, 1):  # the distance from the margin on the difference's own side (-1) and on the other (1)
            share = side * math.copysign(c.min_share or 0.0, -c.mean)
            sd = c.sd if c.base is None else max(spread_beside(c.sd, c.base, share), 1e-9 * c.sd)
            room = (c.min_effect or 0.0) + side * (abs(c.mean) + errors * sd / math.sqrt(c.pairs))
            inside += float(stats.norm.cdf(room / (narrow * sd) * math.sqrt(n) - limit))
        found = max(found, power(mean / (narrow * c.sd), n, alpha=level), inside)
    return found


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The outcome of the looks for a comparison whose true difference is `effect`, in units of the sd of differences."""

    effect: float
    decided: float  # the probability that the difference is shown
    seeds: float  # the mean number of seeds when it is shown, or at the last look


def forecast(plan: Sequence[Look], family: int) -> list[Forecast]:
    """Return the decisions and the cost of the looks, by simulation of normal differences, without stopping for futility.

    Example:
        >>> for f in forecast(planned(Decide(max_seeds=20), 0.05), 1):
        ...     print(f.effect, round(f.decided, 2), round(f.seeds, 1))
        0.0 0.04 19.6
        0.5 0.41 18.2
        1.0 0.96 13.0
        2.0 1.0 6.8
    """
    draws = np.random.default_rng(0).standard_normal((SIMULATED, plan[-1].seeds))
    found = []
    for effect in FORECAST:
        p = [stats.ttest_1samp(draws[:, : look.seeds] + effect, 0.0, axis=1).pvalue for look in plan]
        shown = np.array(p) < np.array([[look.alpha / family] for look in plan])  # [looks, studies]
        decided = shown.any(0)
        seeds = np.where(decided, np.array([look.seeds for look in plan])[shown.argmax(0)], plan[-1].seeds)
        found.append(Forecast(effect=effect, decided=float(decided.mean()), seeds=float(seeds.mean())))
    return found
