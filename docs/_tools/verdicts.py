"""Sentences of result pages that are queries, computed again whenever the site is built: `{{ verdict("attention=additive") }}`.

The values are those of `docs/results/ablations/STUDY/runs.csv`, the family that of the study's effects in its recipe.
"""

import csv
import re
from functools import lru_cache
from pathlib import Path

from attnkit.ablation.contrasts import contrasts
from attnkit.ablation.design import default_effects
from attnkit.ablation.results import p_text
from attnkit.ablation.spec import StudySpec
from attnkit.ablation.statistics import Comparison, judge

OUT = Path(__file__).parents[1] / "results" / "ablations"
QUERY = re.compile(r'\{\{ (verdict|mean|counts)\((?:"([^"]*)")?\) \}\}')


@lru_cache
def values(study: str) -> dict[str, dict[int, float | None]]:
    """Return the metric of every variant by seed."""
    found: dict[str, dict[int, float | None]] = {}
    metric = StudySpec.from_yaml(f"ablations/{study}").metric
    with (OUT / study / "runs.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            value = row[metric] if metric in row else row["value"]  # of `attnkit ablate report`, or of runs_of_figures.py
            found.setdefault(row["variant"].removeprefix("'"), {})[int(row["seed"])] = float(value or "nan")
    return found


@lru_cache
def family(study: str) -> dict[str, Comparison]:
    """Return the comparisons of a study by name."""
    spec = StudySpec.from_yaml(f"ablations/{study}")
    runs, variants = values(study), [v for v in spec.expanded() if v.name in values(study)]
    effects = spec.effects or default_effects(spec.design, spec.factors)
    margin = spec.min_effect if isinstance(spec.min_effect, float) else None
    measured = [c.measure(runs, better=spec.better, min_effect=margin) for c in contrasts(variants, spec.factors, effects)]
    return {c.variant: c for c in judge(measured, better=spec.better, alpha=spec.alpha)}


def answer(study: str, kind: str, name: str) -> str:
    """Return the text of a query, in percentage points of an error rate."""
    if kind == "mean":
        runs = values(study)[name]
        return f"{100 * sum(v for v in runs.values() if v is not None) / len(runs):.1f} %"
    if kind == "counts":
        found = [c.verdict for c in family(study).values() if c.kind == "difference"]
        return ", ".join(f"{found.count(v)} {v}" for v in ("better", "worse", "equivalent", "inconclusive"))
    c = family(study)[name]
    assert c.mean is not None
    assert c.interval is not None
    word = (
        c.verdict if c.kind == "difference" else {"equivalent": "none that matters", "inconclusive": "inconclusive"}.get(c.verdict, "shown")
    )
    low, high = c.interval
    return f"{word}, {100 * c.mean:+.1f} points [{100 * low:.1f}, {100 * high:.1f}], p {p_text(c.p_adjusted)}"


def answered(text: str, study: str) -> str:
    """Return a page with its queries answered.

    Raises:
        KeyError: A query names no variant or contrast of the study.
    """
    return QUERY.sub(lambda m: answer(study, m[1], m[2] or ""), text)
