"""Results of a study over all its tasks and sizes: verdicts per cell, aggregates over tasks, slopes over sizes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from attnkit.ablation.cells import Cell, check_apart
from attnkit.ablation.measurements import lost
from attnkit.ablation.results import INTERACTION, Results, p_text, word
from attnkit.ablation.spec import StudySpec
from attnkit.ablation.statistics import Effect, mean_of_seeds, mean_over_tasks, seed_slopes, share_of
from attnkit.ablation.statistics.comparison import FLOAT32
from attnkit.ablation.tables import Table, difference_text, interval_text
from attnkit.wording import counted

FEWEST = 3  # minimum number of tasks for conclusions about similar tasks


@dataclass(frozen=True, kw_only=True)
class Question:
    """A quantity estimated for each contrast from all cells."""

    over: str  # the scope of the effect, in words, such as `tasks like these`
    weights: np.ndarray = field(compare=False)  # the weight of each cell's improvements, [tasks, sizes]
    per_doubling: bool = False  # whether it is a change per doubling of the size
    sampled: bool = False  # whether the tasks are a sample: if so, Student's t is over tasks, otherwise over seeds

    def __str__(self) -> str:
        return f"{self.over}, per doubling" if self.per_doubling else self.over

    def effect(self, found: Mapping[str, np.ndarray], steps: Mapping[str, np.ndarray], level: float) -> Effect:
        """Return the estimate at a significance level, from each task's improvements [seeds, sizes] and their resolutions [sizes]."""
        by_task = [d @ w for d, w in zip(found.values(), self.weights, strict=True)]
        least = [float(np.linalg.norm(s * w)) for s, w in zip(steps.values(), self.weights, strict=True)]
        if self.sampled:
            return mean_over_tasks(by_task, alpha=level, resolutions=least)
        return mean_of_seeds(np.sum(by_task, axis=0), alpha=level, resolution=math.hypot(*least))


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """An effect over several cells, in units of improvement; positive if the variant is better."""

    variant: str  # the name of the contrast
    reference: str  # the name of its other side
    question: Question  # the quantity estimated
    effect: Effect | None  # the estimate; None if a run diverged or is missing
    verdict: str  # as in a comparison; for a slope, `grows`, `shrinks` or `inconclusive`; for an interaction, a value of `INTERACTION`
    reason: str = ""  # why there is no estimate


class Across:
    """The results of all cells of a study.

    Improvements are differences from the reference, positive where the variant is better, divided by the unit of their cell: the smallest
    difference that matters if all cells declare one, otherwise the reference's mean. Where the unit is itself estimated (the mean, or a
    share of it), its noise is included in that of the seeds, to first order.

    Raises:
        ConfigurationError: Two cells have the same runs.
    """

    def __init__(self, study: StudySpec, results: Sequence[tuple[Cell[Any], Results]]) -> None:
        check_apart({cell.name: one.plan.compositions.values() for cell, one in results})
        self.study, self.results = study, list(results)
        self.tasks = list(dict.fromkeys(cell.task for cell, _ in results))
        self.sizes = list(dict.fromkeys(cell.size for cell, _ in results))
        self.by_margin = all(cell.study.min_effect is not None for cell, _ in results)

    @property
    def unit(self) -> str:
        """The unit of improvements, in words."""
        return "the smallest difference that matters" if self.by_margin else "the reference's mean"

    @property
    def estimates_unit(self) -> bool:
        """Whether the unit of any cell is estimated from its runs: the reference's mean, or a percentage of it."""
        return not self.by_margin or any(share_of(cell.study.min_effect) is not None for cell, _ in self.results)

    @property
    def complete(self) -> bool:
        """Whether every run of every cell is finished."""
        return all(results.complete for _, results in self.results)

    @cached_property
    def names(self) -> list[tuple[str, str]]:
        """The contrasts that all cells have, including interactions, each with its reference."""
        by_cell = [{c.variant: c.reference for c in results.family} for _, results in self.results]
        return [(name, reference) for name, reference in by_cell[0].items() if all(found.get(name) == reference for found in by_cell)]

    @cached_property
    def partial(self) -> list[tuple[str, str, str]]:
        """The contrasts that only some cells have, each with its reference, and the first cell that lacks it."""
        have = {cell.name: {(c.variant, c.reference) for c in results.family} for cell, results in self.results}
        pairs = dict.fromkeys((c.variant, c.reference) for _, results in self.results for c in results.family)
        return [(*pair, next(cell for cell in have if pair not in have[cell])) for pair in pairs if pair not in self.names]

    @property
    def differences(self) -> list[str]:
        """The names of the contrasts that compare two sides, so that one sign is better; interactions are not among them."""
        first = self.results[0][1]
        return [name for name, _ in self.names if first.contrasts[name].kind == "difference"]

    def improvements(self, name: str) -> Mapping[str, np.ndarray] | str:
        """Return the improvements of a contrast by task, each [seeds, sizes], or the reason that there are none."""
        found: dict[str, list[np.ndarray]] = {}
        for cell, results in self.results:
            runs = {variant: results.values(variant) for variant in results.contrasts[name].weights}
            values = [by_seed[seed] for by_seed in runs.values() for seed in cell.study.seeds]  # not the seeds added to single cells
            if missing := sum(v is None for v in values):
                return f"{counted(missing, 'run')} of {cell.name} without a value"
            if diverged := lost(values):
                return f"{counted(diverged, 'run')} of {cell.name} diverged"
            unit = self.unit_of(cell, results, name)
            if not unit:
                return f"the mean of the reference of {cell.name} is 0, so no difference can be relative to it"
            sign = (1.0 if cell.study.better == "higher" else -1.0) / unit
            weights = results.contrasts[name].weights
            row = np.array([sign * sum(w * (runs[v][seed] or 0.0) for v, w in weights.items()) for seed in cell.study.seeds])
            if not self.by_margin or share_of(cell.study.min_effect) is not None:
                references = self._references(cell, results, name)
                row -= row.mean() * (references / references.mean() - 1)
            found.setdefault(cell.task, []).append(row)
        return {task: np.array(rows).T for task, rows in found.items()}

    def _steps(self, name: str) -> dict[str, np.ndarray]:
        """Return the resolution of a contrast's improvements by task, each [sizes]; as within a cell, no spread below it is resolved."""
        found: dict[str, list[float]] = {}
        for cell, results in self.results:
            weights = results.contrasts[name].weights
            largest = max(abs(w * (results.values(v)[seed] or 0.0)) for v, w in weights.items() for seed in cell.study.seeds)
            least = FLOAT32 * largest if results.resolution is None else results.resolution
            found.setdefault(cell.task, []).append(least / self.unit_of(cell, results, name))
        return {task: np.array(steps) for task, steps in found.items()}

    def unit_of(self, cell: Cell[Any], results: Results, name: str) -> float:
        """Return the unit of the improvements of a contrast in a cell."""
        mean = abs(float(self._references(cell, results, name).mean()))
        share, fixed = share_of(cell.study.min_effect), cell.study.min_effect
        return mean if not self.by_margin else float(fixed or 0.0) if share is None else share * mean

    @staticmethod
    def _references(cell: Cell[Any], results: Results, name: str) -> np.ndarray:
        """Return the values, by seed, that a contrast is relative to: those of the other side, or of the baseline for an interaction."""
        contrast = results.contrasts[name]
        baseline = {results.plan.variants[0].name: -1.0}
        weights = contrast.weights if contrast.kind == "difference" else baseline
        runs = [(-w, results.values(variant)) for variant, w in weights.items() if w < 0]
        return np.array([sum(w * (values[seed] or 0.0) for w, values in runs) for seed in cell.study.seeds])

    @cached_property
    def level(self) -> float:
        """Each aggregate's share of alpha; together, they have half of it."""
        return self.study.alpha / 2 / max(1, len(self.names) * len(self.questions))

    @cached_property
    def aggregates(self) -> list[Aggregate]:
        """The effects over cells: one family, which has half of alpha."""
        return [self._aggregate(name, reference, question) for name, reference in self.names for question in self.questions]

    @cached_property
    def questions(self) -> list[Question]:
        """The quantities estimated for each contrast."""
        tasks, sizes = len(self.tasks), [size for size in self.sizes if size is not None]
        equal = np.full((tasks, len(self.sizes)), 1 / len(self.sizes))
        these, found = f"these {tasks} tasks", list[Question]()
        if tasks > 1:
            found.append(Question(over=these, weights=equal / tasks))
        if tasks >= FEWEST:
            found.append(Question(over="tasks like these", weights=equal, sampled=True))
        if len(sizes) > 1:
            slope = np.tile(seed_slopes(np.eye(len(sizes)), sizes), (tasks, 1))
            one = np.eye(tasks)[:, :, None] * slope  # [tasks, tasks, sizes]
            named = [task or "the task" for task in self.tasks]
            found += [Question(over=task, weights=w, per_doubling=True) for task, w in zip(named, one, strict=True)]
            if tasks > 1:
                found.append(Question(over=these, weights=slope / tasks, per_doubling=True))
        return found

    def _aggregate(self, name: str, reference: str, question: Question) -> Aggregate:
        found = self.improvements(name)
        effect = None if isinstance(found, str) else question.effect(found, self._steps(name), self.level)
        verdict = "inconclusive" if effect is None else self._verdict(effect, question.per_doubling)
        return Aggregate(
            variant=name,
            reference=reference,
            question=question,
            effect=effect,
            verdict=verdict if name in self.differences else INTERACTION.get(verdict, verdict),
            reason=found if isinstance(found, str) else "",
        )

    def _verdict(self, effect: Effect, per_doubling: bool) -> str:
        if self.by_margin and not per_doubling and max(map(abs, effect.interval)) < 1:
            return "equivalent"
        above, below = ("grows", "shrinks") if per_doubling else ("better", "worse")
        return "inconclusive" if effect.p >= self.level else above if effect.mean > 0 else below

    def p_adjusted(self, effect: Effect) -> float:
        """Return the p-value of an aggregate, rescaled so that it is below the study's alpha exactly if the original is below its level."""
        return min(1.0, effect.p * self.study.alpha / self.level)

    def aggregates_table(self) -> Table:
        """Return a row for each aggregate."""
        headers = ("variant", "compared with", "over", "improvement [interval]", "p (adjusted)", "verdict")
        rows = []
        for a in self.aggregates:
            number = f"- ({a.reason})" if a.effect is None else f"{a.effect.mean:+.3g}{interval_text(*a.effect.interval)}"
            p = "" if a.effect is None else p_text(self.p_adjusted(a.effect))
            over = str(a.question)
            if a.effect is not None and a.effect.between is not None:
                over += f" (sd between tasks {a.effect.between:.2g})"
            rows.append(
                (
                    a.verdict not in ("inconclusive", "equivalent", INTERACTION["equivalent"]),
                    (self.study.side(a.variant), a.reference, over, number, p, a.verdict),
                )
            )
        for name, reference, cell in self.partial:
            rows.append((False, (self.study.side(name), reference, "-", f"- ({cell} does not compare them)", "", "-")))
        return Table(headers, rows, (0, 3, 5))

    def cells_table(self) -> Table:
        """Return a row for each contrast and cell."""
        rows = []
        for name in dict.fromkeys([name for name, _ in self.names] + [name for name, *_ in self.partial]):
            for cell, results in self.results:
                if not (found := [c for c in results.family if c.variant == name]):
                    rows.append((False, (name, cell.name, cell.study.metric, "- (not compared)", "", "-")))
                    continue
                [c] = found
                p = None if c.p_adjusted is None else min(1.0, c.p_adjusted * self.study.alpha / cell.study.alpha)
                rows.append(
                    (c.verdict in ("better", "worse"), (name, cell.name, cell.study.metric, difference_text(c), p_text(p), word(c)))
                )
        return Table(("variant", "cell", "metric", "difference [interval]", "p (adjusted)", "verdict"), rows, (0, 3, 5))
