"""Sentences of result pages that are queries, computed again whenever the site is built: `{{ verdict("attention=additive") }}`.

| query | answer |
|---|---|
| `verdict("NAME")` | verdict, difference, simultaneous interval and p-value of a contrast |
| `mean("VARIANT")` | the metric of a variant, averaged over seeds |
| `counts()` | how many differences of the family have which verdict |
| `open()` | a table of what is inconclusive, with the cost of deciding it |
| `time()` | the machine time of the runs |

Values and verdicts are those of `docs/results/ablations/STUDY/runs.jsonl.gz`. A study that has not been made again has its old file and
`runs.csv` there instead.
"""

import csv
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from statistics import mean

from attnkit.ablation.answers import RUNS, unpacked
from attnkit.ablation.contrasts import contrasts
from attnkit.ablation.design import default_effects
from attnkit.ablation.results import Results, p_text
from attnkit.ablation.spec import StudySpec
from attnkit.ablation.statistics import Comparison, judge
from attnkit.worker.folder import FINAL

OUT = Path(__file__).parents[1] / "results" / "ablations"
QUERY = re.compile(r'\{\{ (verdict|mean|counts|open|time)\((?:"([^"]*)")?\) \}\}')


@lru_cache
def results(study: str) -> Results | None:
    """Return the results of a study; None if its runs were not kept."""
    file = OUT / study / RUNS
    return Results(*unpacked(file, OUT)) if file.exists() else None


@lru_cache
def values(study: str) -> dict[str, dict[int, float | None]]:
    """Return the metric of every variant by seed."""
    if found := results(study):
        return {variant.name: found.values(variant.name) for variant in found.plan.variants}
    old: dict[str, dict[int, float | None]] = {}
    with (OUT / study / "runs.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            old.setdefault(row["variant"].removeprefix("'"), {})[int(row["seed"])] = float(row["value"])
    return old


@lru_cache
def family(study: str) -> Mapping[str, Comparison]:
    """Return the comparisons of a study by name."""
    if found := results(study):
        return {c.variant: c for c in found.family}
    spec = StudySpec.from_yaml(OUT / study / "study.yaml")
    runs, variants = values(study), [v for v in spec.expanded() if v.name in values(study)]
    effects = spec.effects or default_effects(spec.design, spec.factors)
    margin = spec.min_effect if isinstance(spec.min_effect, float) else None
    measured = [c.measure(runs, better=spec.better, min_effect=margin) for c in contrasts(variants, spec.factors, effects)]
    return {c.variant: c for c in judge(measured, better=spec.better, alpha=spec.alpha)}


@lru_cache
def is_fraction(study: str) -> bool:
    """Return whether the metric is a fraction, to be written in per cent, rather than a loss."""
    found = results(study)
    metric = found.study.metric if found else StudySpec.from_yaml(OUT / study / "study.yaml").metric
    return not any(word in metric for word in ("loss", "perplexity", "bits"))


def _difference(study: str, value: float, sign: str = "+") -> str:
    return f"{100 * value:{sign}.1f}" if is_fraction(study) else f"{value:{sign}.3f}"


def answer(study: str, kind: str, name: str) -> str:
    """Return the text of a query; fractions in percentage points."""
    match kind:
        case "mean":
            found = mean(v for v in values(study)[name].values() if v is not None)
            return f"{100 * found:.1f} %" if is_fraction(study) else f"{found:.3f}"
        case "counts":
            verdicts = [c.verdict for c in family(study).values() if c.kind == "difference"]
            return ", ".join(f"{verdicts.count(v)} {v}" for v in ("better", "worse", "equivalent", "inconclusive"))
        case "open":
            return _open(study)
        case "time":
            return _time(study)
    c = family(study)[name]
    assert c.mean is not None
    assert c.interval is not None
    word = (
        c.verdict if c.kind == "difference" else {"equivalent": "none that matters", "inconclusive": "inconclusive"}.get(c.verdict, "shown")
    )
    low, high = (_difference(study, end, "-") for end in c.interval)
    unit = " points" if is_fraction(study) else ""
    return f"{word}, {_difference(study, c.mean)}{unit} [{low}, {high}], p {p_text(c.p_adjusted)}"


def _open(study: str) -> str:
    """Return what is inconclusive, with the seeds that would decide it and the processor time of their trainings."""
    found = results(study)
    lines = ["| inconclusive | difference | seeds to decide it | from, to | minutes of training |", "|---|---|---|---|---|"]
    for name, c in family(study).items():
        if c.verdict == "inconclusive" and c.mean is not None:
            low, high = c.seeds_range or (None, None)
            seconds = sum(found.mean_cost(v, "seconds") or 0.0 for v in found.contrasts[name].weights) if found else 0.0
            minutes = f"{c.seeds_needed * seconds / 60:,.0f}" if c.seeds_needed and seconds else "-"
            lines.append(
                f"| {name} | {_difference(study, c.mean)} | {_seeds(c.seeds_needed)} | {_seeds(low)}, {_seeds(high)} | {minutes} |"
            )
    return "\n".join(lines) if len(lines) > 2 else "Nothing is inconclusive."


def _seeds(number: int | None) -> str:
    return "more than 10,000" if number is None else f"{number:,}"


def _time(study: str) -> str:
    found = results(study)
    assert found is not None, f"{study}: the times of its runs were not kept"
    ended = [run.key for run in found.runs if found.status[run.key]["status"] in FINAL]
    wall = sum(found.status[key].get("wall_seconds", 0.0) for key in ended) / 60
    training = sum(found.cost(key, "seconds") or 0.0 for key in ended) / 60
    return f"{len(ended)} runs, {training:,.0f} minutes of processor time for training, {wall:,.0f} minutes of wall-clock time"


def answered(text: str, study: str) -> str:
    """Return a page with its queries answered.

    Raises:
        KeyError: A query names no variant or contrast of the study.
    """
    return QUERY.sub(lambda m: answer(study, m[1], m[2] or ""), text)
