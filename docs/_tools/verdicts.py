"""Queries in result pages, answered each time the site is built: `{{ verdict("attention=additive") }}`.

| query | answer |
|---|---|
| `verdict("NAME")` | verdict, difference, simultaneous interval and p-value of a contrast |
| `mean("VARIANT")` | the metric of a variant, averaged over seeds; `mean("VARIANT", "METRIC")`: another metric |
| `runs("VARIANT")` | the metric of its worst and its best run, the lower one first |
| `gain("VARIANT", "METRIC")` | the mean difference from the baseline in another metric, with a 95 % interval of its own over seeds |
| `size("VARIANT")` | by how much its number of parameters exceeds the baseline's |
| `frail()` | the contrasts whose verdict is not shown with the noise of test examples and tuning |
| `right("VARIANT", FROM, TO)` | the share of texts without an error among those whose targets have FROM to TO tokens, in all runs |
| `above("VARIANT", VALUE)` | the number of runs whose metric is above a value |
| `tuned("VARIANT")` | the values that tuning chose |
| `counts()` | the number of differences of the family with each verdict |
| `slope("NAME")` | the change of a contrast with each doubling of the length of texts |
| `open()` | a table of inconclusive comparisons, with the cost of deciding them |
| `time()` | the machine time of the runs, and of tuning |

Values and verdicts are those of `docs/results/ablations/STUDY/runs.jsonl.gz`.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import t

from attnkit.ablation.answers import RUNS, unpacked
from attnkit.ablation.lengths import Slope, slopes
from attnkit.ablation.machine_time import machine_time
from attnkit.ablation.noise import noise_table
from attnkit.ablation.results import Results, p_text
from attnkit.ablation.statistics import Comparison
from attnkit.ablation.tuning import written

OUT = Path(__file__).parents[1] / "results" / "ablations"
QUERY = re.compile(r"\{\{ (verdict|mean|runs|gain|size|frail|right|above|tuned|counts|slope|open|time)\((.*?)\) \}\}")


@lru_cache
def results(study: str) -> Results:
    """Return the results of a study."""
    return Results(*unpacked(OUT / study / RUNS, OUT))


@lru_cache
def family(study: str) -> Mapping[str, Comparison]:
    """Return the comparisons of a study by name."""
    return {c.variant: c for c in results(study).family}


def is_fraction(metric: str) -> bool:
    """Return whether a metric is a fraction, which is written in per cent, rather than a loss or a score from 0 to 100."""
    return not any(word in metric for word in ("loss", "perplexity", "bits", "bleu", "chrf", "rouge"))


def _difference(study: str, value: float, sign: str = "+") -> str:
    return f"{100 * value:{sign}.1f}" if is_fraction(results(study).study.metric) else f"{value:{sign}.3f}"


def answer(study: str, kind: str, *arguments: Any) -> str:
    """Return the answer to a query as text; differences of fractions are in percentage points."""
    match kind, arguments:
        case "mean", (variant, *other):
            metric = other[0] if other else results(study).study.metric
            return _number(mean(_metrics(study, variant, metric)), metric)
        case "runs", (variant,):
            metric = results(study).study.metric
            low, high = (_number(end(_metrics(study, variant, metric)), metric) for end in (min, max))
            return f"{low.removesuffix(' %')} to {high}"
        case "gain", (variant, metric):
            differences = [one - other for one, other in zip(*(_metrics(study, v, metric) for v in (variant, "baseline")), strict=True)]
            middle, half = mean(differences), t.ppf(0.975, len(differences) - 1) * stdev(differences) / len(differences) ** 0.5
            number, low, high = (_number(one, metric).removesuffix(" %") for one in (middle, middle - half, middle + half))
            return f"{'+' if middle > 0 else ''}{number} [{low}, {high}]"
        case "size", (variant,):
            ours, theirs = (_results(study, v)[0]["parameters"] for v in (variant, "baseline"))
            return f"{100 * (ours / theirs - 1):.0f} %"
        case "frail", () if noise_table(results(study)).rows:
            return ", ".join(f"`{cells[0]}`" for _, cells in noise_table(results(study)).rows if cells[-1] == "no") or "none"
        case "right", (variant, low, high):
            rows = [row for result in _results(study, variant) for row in result["lengths"]["target"] if low <= row["length"] <= high]
            wrong = sum(row["count"] * row["sequence_error_rate"] for row in rows) / sum(row["count"] for row in rows)
            return f"{100 * (1 - wrong):.1f} %"
        case "above", (variant, value):
            return str(sum(one > value for one in _metrics(study, variant, results(study).study.metric)))
        case "tuned", (variant,):
            return written(results(study).plan.tuned[variant].chosen)
        case "counts", ():
            verdicts = [c.verdict for c in family(study).values() if c.kind == "difference"]
            return ", ".join(f"{verdicts.count(v)} {v}" for v in ("better", "worse", "equivalent", "inconclusive"))
        case "slope", (name,):
            return _slope(study, next(one for one in slopes(results(study)) if one.name == name))
        case "open", ():
            return _open(study)
        case "time", ():
            return _time(study)
        case "verdict", (name,):
            return _verdict(study, family(study)[name])
    raise KeyError(f"{kind} does not take {arguments}")


def _number(value: float, metric: str) -> str:
    return f"{100 * value:.1f} %" if is_fraction(metric) else f"{value:.{1 if 'rouge' in metric else 3}f}"


def _results(study: str, variant: str) -> list[Mapping[str, Any]]:
    """Return the results of the runs of a variant."""
    found = results(study)
    if variant not in {one.name for one in found.plan.variants}:
        raise KeyError(f"{study} has no variant {variant}")
    return [found.result[run.key] for run in found.runs if variant in run.variants]


def _metrics(study: str, variant: str, metric: str) -> list[float]:
    return [result["metrics"][metric] for result in _results(study, variant)]


def _verdict(study: str, c: Comparison) -> str:
    assert c.mean is not None
    assert c.interval is not None
    word = (
        c.verdict if c.kind == "difference" else {"equivalent": "none that matters", "inconclusive": "inconclusive"}.get(c.verdict, "shown")
    )
    return f"{word}, {_tested(study, c.mean, c.interval, c.p_adjusted)}"


def _slope(study: str, one: Slope) -> str:
    assert one.effect is not None, one.reason
    return _tested(study, one.effect.mean, one.effect.interval, one.p_adjusted)


def _tested(study: str, mean: float, interval: tuple[float, float], p: float | None) -> str:
    low, high = (_difference(study, end, "-") for end in interval)
    unit = " points" if is_fraction(results(study).study.metric) else ""
    return f"{_difference(study, mean)}{unit} [{low}, {high}], p {p_text(p)}"


def _open(study: str) -> str:
    """Return a table of inconclusive comparisons, with the seeds that would decide them and the processor time to train these."""
    found = results(study)
    lines = ["| inconclusive | difference | seeds to decide it | from, to | minutes of training |", "|---|---|---|---|---|"]
    for name, c in family(study).items():
        if c.verdict == "inconclusive":
            low, high = c.seeds_range or (None, None)
            seconds = sum(found.mean_cost(v, "seconds") or 0.0 for v in found.contrasts[name].weights)
            minutes = f"{c.seeds_needed * seconds / 60:,.0f}" if c.seeds_needed and seconds else "-"
            lines.append(
                f"| {name} | {'-' if c.mean is None else _difference(study, c.mean)} | {_seeds(c.seeds_needed)} "
                f"| {_seeds(low)}, {_seeds(high)} | {minutes} |"
            )
    return "\n".join(lines) if len(lines) > 2 else "Nothing is inconclusive."


def _seeds(number: int | None) -> str:
    return "more than 10,000" if number is None else f"{number:,}"


def _time(study: str) -> str:
    return machine_time(results(study))


def answered(text: str, study: str) -> str:
    """Return a page with its queries answered.

    Raises:
        KeyError: A query names no variant or contrast of the study, or has arguments that it does not take.
    """
    return QUERY.sub(lambda m: answer(study, m[1], *json.loads(f"[{m[2]}]")), text)
