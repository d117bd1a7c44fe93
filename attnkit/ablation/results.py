"""What the runs of a study say, read from their files alone."""

import math
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from attnkit.ablation.interaction import interactions
from attnkit.ablation.plan import Plan, Run
from attnkit.ablation.statistics import Comparison, compare, judge
from attnkit.ablation.store import read_json, status_of
from attnkit.ablation.study import Study


class Results:
    """The results of a plan, finished or not.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.study = plan.study
        self.status = {run.key: status_of(plan.run_folder(run.key)) for run in plan.runs}
        self.result = {run.key: read_json(plan.run_folder(run.key) / "result.json") or {} for run in plan.runs}

    @property
    def complete(self) -> bool:
        """Whether every run has an outcome."""
        return all(s["status"] in ("ok", "diverged") for s in self.status.values())

    def value(self, key: str) -> float | None:
        """Return the metric of a run; NaN if it diverged, None if there is none."""
        if self.status[key]["status"] == "diverged":
            return math.nan
        if self.status[key]["status"] != "ok":
            return None
        metrics = self.result[key].get("metrics", {})
        if self.study.metric in metrics and metrics[self.study.metric] is None:
            return math.nan  # not a number at the end
        value = metrics.get(self.study.metric)
        return None if value is None else float(value)

    def values(self, variant: str) -> dict[int, float | None]:
        """Return the metric of a variant by seed."""
        keys = self.plan.key_by_variant
        return {seed: self.value(keys[variant, seed]) for seed in self.study.seeds}

    @cached_property
    def same(self) -> dict[str, str]:
        """The variants that are the same composition as their reference, which is the value."""
        keys = self.plan.key_by_variant
        first = self.study.seeds[0]
        return {v.name: v.reference for v in self.plan.variants if v.reference and keys[v.name, first] == keys[v.reference, first]}

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Every variant against its reference: the declared family of the study. One that is the same composition is no hypothesis."""
        study = self.study
        measured = [
            compare(
                v.name,
                self.values(v.name),
                reference=v.reference,
                reference_runs=self.values(v.reference),
                better=study.better,
                min_effect=study.min_effect,
                alpha=study.alpha,
            )
            for v in self.plan.variants
            if v.reference is not None and v.name not in self.same
        ]
        return judge(measured, better=study.better, min_effect=study.min_effect, alpha=study.alpha)

    @cached_property
    def interactions(self) -> list[Comparison]:
        """Of a full design with two factors or more."""
        study = self.study
        if study.design != "full" or len(study.factors) < 2:
            return []
        runs = {v.choices: self.values(v.name) for v in self.plan.variants}
        baseline = {f.name: f.baseline.label for f in study.factors}
        return interactions(runs, baseline=baseline, min_effect=study.min_effect, alpha=study.alpha)

    def frame(self) -> pd.DataFrame:
        """Return a row for each variant and seed: status, every metric, size, time and the hash of the batches."""
        rows: list[dict[str, Any]] = []
        for (variant, seed), key in self.plan.key_by_variant.items():
            result = self.result[key]
            rows.append(
                {"variant": variant, "seed": seed, "status": self.status[key]["status"], "run": key}
                | {name: result.get(name) for name in ("parameters", "batches", "tokens", "seconds", "batch_hash")}
                | result.get("metrics", {})
            )
        return pd.DataFrame(rows)

    def unpaired(self) -> list[int]:
        """Return the seeds whose finished runs did not all see the same batches in the same order."""
        hashes: dict[int, set[str]] = {}
        for run in self.plan.runs:
            if self.status[run.key]["status"] == "ok":
                hashes.setdefault(run.seed, set()).add(self.result[run.key]["batch_hash"])
        return [seed for seed, found in hashes.items() if len(found) > 1]

    def failures(self) -> list[tuple[Run, dict[str, Any]]]:
        """Return the runs without a number, with their status."""
        return [(run, self.status[run.key]) for run in self.plan.runs if self.status[run.key]["status"] != "ok"]

    def environments(self) -> list[tuple[str, int]]:
        """Return in which environments the runs were made, and how many in each."""
        found = [read_json(self.plan.run_folder(run.key) / "environment.json") for run in self.plan.runs]
        return Counter(", ".join(f"{k} {v}" for k, v in e.items()) for e in found if e).most_common()

    def checklist(self) -> list[tuple[bool, str]]:
        """Return what a careful reader would ask, each with whether it holds."""
        study, plan = self.study, self.plan
        unpaired, failures, environments = self.unpaired(), self.failures(), self.environments()
        by_flops = study.match is not None and study.match.on == "flops"
        sizes = [(i.flops if by_flops else i.parameters) or 0 for i in (plan.inspections[v.name] for v in plan.variants)]
        spread = max(sizes) / min(sizes) - 1 if all(sizes) else 0.0
        limit = study.match.tolerance if study.match else 0.0
        asked = read_json(plan.study_folder / "study.json") or {}
        added = [s for s in study.seeds if s not in asked.get("seeds_at_start", study.seeds)]
        effects = sum(len(e) for e in plan.side_effects.values())
        seeded = all(plan.inspections[v.name].takes_seed for v in plan.variants)
        return [
            (
                not unpaired,
                "all variants saw the same batches in the same order" + (f", but not with the seeds {unpaired}" if unpaired else ""),
            ),
            (seeded, "the order of the data has a seed of its own"),
            (not failures, f"every run has a number: {len(plan.runs) - len(failures)} of {len(plan.runs)}"),
            (
                spread <= 2 * limit + 0.005,
                f"the {'FLOPs' if by_flops else 'sizes'} of the variants differ by {spread:.1%}"
                + (f" (match: up to {limit:.1%} each)" if limit else ""),
            ),
            (
                len(environments) <= 1,
                f"all runs were made in {'the same environment' if len(environments) <= 1 else 'different environments'}",
            ),
            (
                not added,
                "the number of seeds was decided before the results"
                + (f", but {added} were added: p-values are too small" if added else ""),
            ),
            (
                effects == 0,
                "variants differ only in what the study says" + (f", but for {effects} arguments, listed below" if effects else ""),
            ),
            (study.min_effect is not None, "the smallest difference that matters was declared"),
            (False, "every variant was tuned by as many trials: nothing was tuned, the recipe's settings may suit its own pieces best"),
        ]

    def sentences(self) -> list[str]:
        """Return the verdicts in words."""
        same = [f"{variant} is the same composition as {reference}" for variant, reference in self.same.items()]
        return [*(sentence(c, self.study) for c in self.comparisons), *same]

    def report(self, folder: str | Path | None = None) -> Path:
        """Write `report.html`, `.md`, `.tex`, `.csv` and `runs.csv`; return the path of the page."""
        from attnkit.ablation.report import write_report

        return write_report(self, Path(folder) if folder is not None else self.plan.study_folder)

    def _repr_html_(self) -> str:
        return str(self.frame().to_html())


def sentence(c: Comparison, study: Study) -> str:
    """Return a verdict in words.

    Example:
        >>> from attnkit.ablation.statistics import judge, compare
        >>> [c] = judge([compare("a", {0: 1.0, 1: 1.2, 2: 0.9}, reference="b", reference_runs={0: 1.5, 1: 1.6, 2: 1.5})])
        >>> sentence(c, Study(name="s", recipe="r", design="list", variants=(None,)))
        'a is better than b: val/loss -0.5 (95% interval -0.748 to -0.252, adjusted p 0.013, 3 pairs)'
    """
    word = {"better": "is better than", "worse": "is worse than", "equivalent": "is equivalent to", "inconclusive": "cannot be told from"}
    level = f"{1 - study.alpha:.0%}".rstrip("0").rstrip(".") if (1 - study.alpha) * 100 % 1 else f"{1 - study.alpha:.0%}"
    numbers = []
    if c.mean is not None and not any(c.diverged):
        numbers.append(f"{study.metric} {c.mean:+.3g}")
    details = []
    if c.interval is not None and not any(c.diverged):
        details.append(f"{level} interval {c.interval[0]:.3g} to {c.interval[1]:.3g}")
    if c.p_adjusted is not None:
        details.append(f"adjusted p {p_text(c.p_adjusted)}")
    details.append(f"{c.pairs} pairs")
    text = f"{c.variant} {word[c.verdict]} {c.reference}: {' '.join([*numbers, '(' + ', '.join(details) + ')'])}"
    return text if c.verdict in ("better", "worse") and not any(c.diverged) else f"{text}; {c.reason}"


def p_text(p: float | None) -> str:
    """Return a p-value as text.

    Example:
        >>> p_text(0.01234), p_text(1e-6), p_text(None)
        ('0.012', '< 0.001', '')
    """
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
