"""The change of a study's contrasts with the length of texts: slopes per doubling, with intervals over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from attnkit.ablation.measurements import lost
from attnkit.ablation.results import Results, p_text
from attnkit.ablation.statistics import Effect, mean_of_seeds
from attnkit.ablation.tables import Row, Table, compared_with, interval_text
from attnkit.wording import counted
from attnkit.worker.folder import FINISHED


@dataclass(frozen=True, kw_only=True)
class Slope:
    """The change of a contrast's difference with each doubling of the length."""

    name: str  # the name of the contrast
    seeds: int  # the number of seeds with which all its runs have ended; with `decide`, contrasts differ in it
    effect: Effect | None = None  # its estimate; the interval is simultaneous over all contrasts
    p_adjusted: float | None = None
    reason: str = ""  # why there is no estimate


def metric_by_length(results: Results) -> str:
    """Return the name of the metric whose slopes are compared; empty if the study asks for none, or no run has measured one."""
    side = results.study.lengths
    return "" if side is None else next((name for v in results.plan.variants if (name := results.by_length(v.name, side)[0])), "")


def slopes(results: Results) -> list[Slope]:
    r"""Return the slope of each contrast of the family; none before all runs have ended.

    Each run has the slope of its metric over $x = \log_2 \mathrm{length}$ by least squares over its examples, $b = \sum_x n_x (x - \bar x)
    y_x / \sum_x n_x (x - \bar x)^2$ with $n_x$ examples of mean $y_x$. A contrast's slope is the weighted sum of its variants' slopes, seed
    by seed, with Student's t over seeds.
    """
    name, side, keys = metric_by_length(results), results.study.lengths, results.plan.key_by_variant
    if not (name and results.complete):
        return []
    by_run = {key: slope_of(result.get("lengths", {}).get(side, []), name) for key, result in results.result.items()}
    found = []
    for c in results.family:
        weights = results.contrasts[c.variant].weights
        runs = [[(weight, keys[variant, seed]) for variant, weight in weights.items()] for seed in results.study.seeds]
        runs = [one for one in runs if all(results.status[key]["status"] in FINISHED for _, key in one)]
        ended = [[(w, by_run[key]) for w, key in one] for one in runs]
        known = [sum(w * b for w, b in one if b is not None) for one in ended if all(b is not None for _, b in one)]
        slope = partial(Slope, name=c.variant, seeds=len(runs))
        if diverged := lost(results.value(key) for key in {key for one in runs for _, key in one}):
            found.append(slope(reason=f"{counted(diverged, 'run')} diverged"))
        elif len(known) < max(2, len(ended)):
            found.append(slope(reason="not all runs have a value at each of several lengths"))
        elif np.ptp(known) < 1e-9:
            found.append(slope(reason=f"{known[0]:+.3g} with every seed, so its noise is unknown"))
        else:
            effect = mean_of_seeds(known, alpha=results.study.alpha / len(results.family))
            found.append(slope(effect=effect, p_adjusted=min(1.0, effect.p * len(results.family))))
    return found


def lengths_table(results: Results) -> Table:
    """Return a row for each of `slopes`."""
    rows: list[Row] = []
    for c, one in zip(results.family, slopes(results), strict=False):
        number = f"- ({one.reason})" if one.effect is None else f"{one.effect.mean:+.3g}{interval_text(*one.effect.interval)}"
        rows.append((False, (results.study.side(c.variant), compared_with(c), number, str(one.seeds), p_text(one.p_adjusted))))
    change = f"change of the difference in {metric_by_length(results)} [interval]"
    return Table(("contrast", "compared with", change, "seeds", "p (adjusted)"), rows)


def slope_of(rows: Sequence[Mapping[str, float | None]], name: str) -> float | None:
    """Return the change of a metric per doubling of the length, over examples; None without two lengths, or without all values.

    Example:
        >>> slope_of([{"length": 2, "count": 3, "loss": 0.5}, {"length": 8, "count": 1, "loss": 1.5}], "loss")
        0.5
        >>> slope_of([{"length": 2, "count": 3, "loss": 0.5}], "loss")
    """
    known = [(row["length"], row["count"], row.get(name)) for row in rows if row["length"]]
    if len({length for length, *_ in known}) < 2 or not all(value is not None and math.isfinite(value) for *_, value in known):
        return None
    x, n, y = np.array(known, dtype=np.float64).T
    x = np.log2(x) - np.average(np.log2(x), weights=n)
    return float((n * x * y).sum() / (n * x * x).sum())


def lengths_means(results: Results) -> str:
    """Return the meaning of `lengths_table`, for the report."""
    return (
        f"The change of each difference with each doubling of the length of the {results.study.lengths}: in every run, the slope over the "
        "logarithm of the length by least squares over all examples, then contrasts by seed. Intervals and p-values are simultaneous over "
        "this table. It is exploratory: no verdict of the study rests on it, and a straight line may not fit; see the figure."
    )
