"""The measurements and provenance of the runs of a plan, from stored answers alone."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

import pandas as pd

from attnkit.ablation.answers import Answers, answers_of
from attnkit.ablation.plan import Plan, Run
from attnkit.ablation.validity import Accepted
from attnkit.worker.folder import FINISHED
from attnkit.worker.provenance import mixtures

COSTS = ("flops_per_token", "flops", "elementwise_per_token", "tokens_per_second", "memory", "seconds")
"""The costs of a training run: FLOPs per token and in total; element-wise operations per token; tokens per second; the peak memory of its
process in bytes; its time in seconds."""


def numbers(values: Iterable[float | None]) -> list[float]:
    """Return the values that are numbers, without those of runs that diverged (NaN) or have none (None)."""
    return [value for value in values if value is not None and not math.isnan(value)]


def lost(values: Iterable[float | None]) -> int:
    """Return the number of runs that diverged."""
    return sum(value is not None and math.isnan(value) for value in values)


def mean(known: Sequence[float]) -> float | None:
    """Return the mean; None if there are no values."""
    return sum(known) / len(known) if known else None


class Measurements:
    """The measurements of a plan's runs, finished or not, from its answers (default: those in the folders of the runs)."""

    def __init__(self, plan: Plan, answers: Answers | None = None) -> None:
        self.plan = plan
        self.study = plan.study
        self.answers = answers_of(plan) if answers is None else answers
        self.status = {run.key: plan.study.counted(self.answers.runs[run.key].status) for run in plan.runs}
        self.result = {run.key: dict(self.answers.runs[run.key].result) for run in plan.runs}

    @property
    def runs(self) -> list[Run]:
        """The runs that are measured: all runs of the plan."""
        return list(self.plan.runs)

    @property
    def trials(self) -> "Measurements | None":
        """The measurements of the trials by which the study was tuned; None if it was not, or they are lost."""
        return None if self.answers.trials is None else Measurements(*self.answers.trials)

    def keys_of(self, variant: str) -> list[str]:
        """Return the keys of the runs of a variant, by seed."""
        return [key for (name, _), key in self.plan.key_by_variant.items() if name == variant]

    def value(self, key: str) -> float | None:
        """Return the metric of a run; NaN if the run diverged, None if it has no value."""
        status, metrics = self.status[key]["status"], self.result[key].get("metrics", {})
        if status == "diverged" or (status == "ok" and metrics.get(self.study.metric, 0.0) is None):  # not finite at the end
            return math.nan
        value: float | None = metrics.get(self.study.metric) if status == "ok" else None
        return value

    def values(self, variant: str) -> dict[int, float | None]:
        """Return the metric of a variant by seed."""
        return {run.seed: self.value(run.key) for run in self.runs if variant in run.variants}

    @cached_property
    def resolution(self) -> float | None:
        """The smallest step of the metric: as declared or, if the metric counts examples or tokens, one of them; None if unknown."""
        if self.study.resolution is not None:
            return self.study.resolution
        name = self.study.metric_name
        sums = [kept[name] for result in self.result.values() if name in (kept := result.get("examples", {}))]
        counts_steps = all(float(part).is_integer() for top, _ in sums for part in top)
        least = min((sum(bottom) for _, bottom in sums), default=0)
        return 1 / least if counts_steps and least > 0 else None

    def mean_of(self, variants: Iterable[str]) -> float | None:
        """Return the mean over all runs of the variants; None if one of the runs has no number."""
        values = [value for name in variants for value in self.values(name).values()]
        known = numbers(values)
        return mean(known) if len(known) == len(values) else None

    def cost(self, key: str, name: str) -> float | None:
        """Return the cost `name`, one of `COSTS`, of a run; None if it was not measured."""
        result = self.result[key]
        if name == "flops":
            per_token, tokens = result.get("flops_per_token"), result.get("tokens")
            return None if per_token is None or tokens is None else float(per_token * tokens)
        if name == "tokens_per_second" and result.get("tokens") == 0:  # batches of numbers have no tokens
            return None
        value: float | None = result.get(name)
        return value

    def mean_cost(self, variant: str, name: str) -> float | None:
        """Return the cost `name`, one of `COSTS`, averaged over the finished runs of a variant."""
        return mean(numbers(self.cost(key, name) for key in self.keys_of(variant) if self.status[key]["status"] == "ok"))

    def parameters(self, variant: str) -> int | None:
        """Return the number of parameters of a variant: as trained or, if no run has finished (or runs disagree), as planned."""
        trained = {self.result[key].get("parameters") for key in self.keys_of(variant)} - {None}
        return trained.pop() if len(trained) == 1 else self.plan.inspections[variant].parameters

    def miscounted(self) -> list[str]:
        """Return the variants whose runs had a different number of parameters from the plan, as when `setup` adds modules."""
        planned = {v.name: self.plan.inspections[v.name].parameters for v in self.plan.variants}
        return [name for name, count in planned.items() if count is not None and self.parameters(name) != count]

    def clocks(self) -> set[str]:
        """Return how training was timed: `processor`, `wall`, or `shared` (wall-clock time on GPUs that runs may share)."""
        return {result["clock"] for result in self.result.values() if "clock" in result}

    def by_length(self, variant: str, side: Literal["source", "target"]) -> tuple[str, list[tuple[float, float]]]:
        """Return the name of a metric known by length, and its means over the finished runs, as pairs of a length and a value.

        Rare lengths (under 1 % of the examples, or under 20 examples per run) are merged with their neighbours. A mean is NaN if a run has
        no finite value at one of its lengths.
        """
        found = [self.result[key].get("lengths", {}).get(side, []) for key in self.keys_of(variant)]
        rows = [row for table in found for row in table]
        names = [name for name in (rows[0] if rows else {}) if name not in ("length", "count")]
        if not names:
            return "", []
        wanted = self.study.metric_name
        name = wanted if wanted in names else names[0]
        least = max(20 * sum(map(bool, found)), 0.01 * sum(row["count"] for row in rows))
        bins: list[list[dict[str, float]]] = [[]]
        for _, same in groupby(sorted(rows, key=lambda row: row["length"]), key=lambda row: row["length"]):
            if sum(row["count"] for row in bins[-1]) >= least:
                bins.append([])
            bins[-1] += same
        if len(bins) > 1 and sum(row["count"] for row in bins[-1]) < least:
            bins[-2:] = [bins[-2] + bins[-1]]

        def mean_of(rows: list[dict[str, Any]], key: str) -> float:
            total = sum(row["count"] * (math.nan if row[key] is None else row[key]) for row in rows)
            return float(total / sum(row["count"] for row in rows))

        return name, [(mean_of(rows, "length"), mean_of(rows, name)) for rows in bins]

    def frame(self) -> pd.DataFrame:
        """Return a row for each variant and seed: status, every metric, size, FLOPs, speed, memory and the hash of the batches seen."""
        rows: list[dict[str, Any]] = []
        for (variant, seed), key in self.plan.key_by_variant.items():
            result = self.result[key]
            row = (
                {"variant": variant, "seed": seed, "status": self.status[key]["status"], "run": key}
                | {name: result.get(name) for name in ("parameters", "batches", "tokens", "seconds", "clock")}
                | {name: self.cost(key, name) for name in COSTS}
                | {"batch_hash": result.get("batch_hash")}
            )
            rows.append(row | {f"metric {name}" if name in row else name: value for name, value in result.get("metrics", {}).items()})
        return pd.DataFrame(rows)

    def failures(self) -> list[tuple[Run, dict[str, Any]]]:
        """Return the runs without a number, with their status."""
        metric = self.study.metric
        lacking = {"status": "ok", "kind": "damaged", "message": f"its result has no {metric}"}
        infinite = {"status": "diverged", "kind": "not finite", "message": f"its {metric} is not a number, or infinite, at the end"}
        found = []
        for run in self.runs:
            status, metrics = self.status[run.key], self.result[run.key].get("metrics", {})
            if status["status"] != "ok":
                found.append((run, status))
            elif metrics.get(metric) is None:
                found.append((run, infinite if metric in metrics else lacking))
        return found

    def unpaired(self) -> list[int]:
        """Return the seeds whose finished runs did not all see the same batches in the same order."""
        hashes: dict[int, set[str]] = {}
        for run in self.runs:
            if self.status[run.key]["status"] == "ok":
                hashes.setdefault(run.seed, set()).add(self.result[run.key].get("batch_hash", ""))
        return [seed for seed, found in hashes.items() if len(found) > 1]

    def starts(self) -> tuple[int, Mapping[str, int]] | None:
        """Return the number of the variants' parameters that start with the baseline's values and, by variant, of those that do not.

        Parameters of equal name and shape are compared seed by seed; None if there are none.
        """
        equal, different = 0, Counter[str]()
        baseline = self.plan.variants[0].name
        for (variant, seed), key in self.plan.key_by_variant.items():
            first, own = (self.result[k].get("starts", {}) for k in (self.plan.key_by_variant[baseline, seed], key))
            for name in first.keys() & own.keys() if variant != baseline else ():
                if first[name].rpartition(" ")[0] == own[name].rpartition(" ")[0]:
                    equal += first[name] == own[name]
                    different[variant] += first[name] != own[name]
        return (equal, +different) if equal or different else None

    def unhashed(self) -> list[str]:
        """Return the types of the values in batches that could not be hashed; whether those were the same is unknown."""
        return sorted({kind for result in self.result.values() for kind in result.get("unhashed", ())})

    def environments(self) -> list[tuple[str, int]]:
        """Return descriptions of the processors and packages that runs were made with, and the number of runs of each."""
        made = (self.answers.runs[run.key].provenance for run in self.runs)
        return Counter(str(one) for one in made if one is not None).most_common()

    def mixtures(self) -> list[str]:
        """Return sentences on differences between the finished runs, apart from their recipes: in code, packages, data or processor."""
        finished = (run.key for run in self.plan.runs if self.status[run.key]["status"] in FINISHED)
        return mixtures(self.answers.runs[key].provenance for key in finished)

    def accepted(self) -> list[Accepted]:
        """Return the acceptances that concern runs of this plan."""
        keys = {run.key for run in self.plan.runs}
        within = (replace(one, runs={key: what for key, what in one.runs.items() if key in keys}) for one in self.answers.accepted)
        return [one for one in within if one.runs]
