"""Causes of effects over tasks and sizes other than seeds: test examples and tuning; and intervals that also cover these."""

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np

from attnkit.ablation.across import Across, Aggregate, Question
from attnkit.ablation.cells import Cell
from attnkit.ablation.noise import OWN, Noise, joined, moves_of, parts_of, table_of
from attnkit.ablation.results import Results
from attnkit.ablation.statistics import interquartile_mean, parts_error, stratified_interval
from attnkit.ablation.tables import Table, interval_text

IN_SPREAD = "of tasks that are a sample, the spread between tasks has the noise of their own test examples and of their tuning"


class Sources:
    """The noise of test examples and of tuning in the improvements of a contrast, which must have some."""

    def __init__(self, across: Across, name: str) -> None:
        self.across, self.name = across, name

    def _cells(self) -> Iterator[tuple[int, int, Cell[Any], Results, dict[str, float]]]:
        """Yield the places of the task and the size of each cell, and the weights of its variants in the improvement."""
        for cell, results in self.across.results:
            scale = (1.0 if cell.study.better == "higher" else -1.0) / self.across.unit_of(cell, results, self.name)
            weights = {v: scale * w for v, w in results.contrasts[self.name].weights.items()}
            yield self.across.tasks.index(cell.task), self.across.sizes.index(cell.size), cell, results, weights

    def examples(self, weights: np.ndarray) -> list[np.ndarray] | str:
        """Return what examples contribute to a sum of improvements with weights [tasks, sizes], or why that is not known.

        Arrays of different lengths are of different examples, and so independent. Contributions are added where they are equally many: of
        the same examples, this is their sum; of others, which are independent, it leaves the estimate of the variance without a bias.
        """
        found: dict[int, np.ndarray] = {}
        own = False
        for task, size, cell, results, of in self._cells():
            parts = parts_of(results, {v: weights[task, size] * w for v, w in of.items()}, cell.study.seeds)
            if isinstance(parts, str) and parts != OWN:
                return f"{cell.name}: {parts}"
            own |= isinstance(parts, str)
            if not isinstance(parts, str):
                found[len(parts)] = found.get(len(parts), 0.0) + parts
        return list(found.values()) or (OWN if own else "")

    def by_run(self) -> list[np.ndarray] | str:
        """Return what examples contribute to each run's improvement over sizes, [seeds, examples] for each task; or why it is not known."""
        found: dict[int, np.ndarray] = {}
        for task, _, cell, results, of in self._cells():
            weights = {v: w / len(self.across.sizes) for v, w in of.items()}
            rows = [parts_of(results, weights, [seed]) for seed in cell.study.seeds]
            if wrong := [row for row in rows if isinstance(row, str)] or [OWN] * (isinstance(parts_of(results, of, cell.study.seeds), str)):
                return f"{cell.name}: {wrong[0]}"
            parts = np.stack([row for row in rows if not isinstance(row, str)])
            if task in found and found[task].shape != parts.shape:
                return f"{cell.name}: sizes have other numbers of test examples"
            found[task] = found.get(task, 0.0) + parts
        return list(found.values())

    def tuning(self, weights: np.ndarray) -> np.ndarray | str:
        """Return at most how far a repeated tuning would move each task's share of a sum with weights [tasks, sizes], or why it is unknown.

        Variants and tasks are tuned with seeds of their own. The sizes of a task share them, so that what they move is added.
        """
        found: list[dict[str, float]] = [{} for _ in self.across.tasks]
        for task, size, cell, results, of in self._cells():
            moves = moves_of(results, {v: weights[task, size] * w for v, w in of.items()}, len(cell.study.seeds))
            if isinstance(moves, str):
                return f"{cell.name}: {moves}" if moves else ""
            for variant, move in moves.items():
                found[task][variant] = found[task].get(variant, 0.0) + move
        return np.array([math.hypot(*moves.values()) for moves in found])

    def share_examples(self) -> bool:
        """Return whether tasks may have the same test examples: the denominators of their sums are equal."""
        below: dict[int, set[tuple[float, ...]]] = {}
        for task, _, cell, results, of in self._cells():
            metric, first = cell.study.metric.partition("/")[2], results.plan.key_by_variant[next(iter(of)), cell.study.seeds[0]]
            sums = results.result[first].get("examples", {}).get(metric)
            below.setdefault(task, set()).update([tuple(sums[1])] if sums else [])
        return any(one & other for one, other in combinations(below.values(), 2))


def noises_across(across: Across) -> list[Noise]:
    """Return the sources of noise of each aggregate that has an estimate, in their order."""
    every = [(a, question) for a, question in zip(across.aggregates, across.questions * len(across.names), strict=True)]
    return [_noise(Sources(across, a.variant), a, question) for a, question in every if a.effect is not None]


def _noise(sources: Sources, a: Aggregate, question: Question) -> Noise:
    effect = a.effect
    assert effect is not None
    over = f"{a.variant}, {a.over}{', per doubling' if a.per_doubling else ''}"
    weights = question.weights / len(question.weights) if question.sampled else question.weights
    examples = sources.examples(weights) if not question.sampled or sources.share_examples() else IN_SPREAD
    moves = IN_SPREAD if question.sampled else sources.tuning(weights)
    errors = examples if isinstance(examples, str) else [parts_error(one) for one in examples]
    tuning = moves if isinstance(moves, str) else float(np.linalg.norm(moves))
    return joined(over, effect.mean, (effect.sd / math.sqrt(effect.df + 1), effect.df), errors, tuning, level=a.level)


def noise_table_across(across: Across) -> Table:
    """Return a row for each aggregate with an estimate, or no rows if seeds and tasks are the only known sources."""
    shown = [a.effect.p < a.level and a.verdict != "equivalent" for a in across.aggregates if a.effect is not None]
    return table_of(noises_across(across), shown)


def resampled(across: Across, name: str) -> dict[str, Any]:
    """Return the arguments of a bootstrap over the sources of a contrast that are known beside seeds; none: no other is."""
    sources = Sources(across, name)
    examples, moves = sources.by_run(), sources.tuning(np.full((len(across.tasks), len(across.sizes)), 1 / len(across.sizes)))
    found: dict[str, Any] = {} if isinstance(examples, str) else {"examples": examples}
    return found | ({} if isinstance(moves, str) else {"spreads": moves.tolist()})


def robust_table(across: Across) -> Table:
    """Return the interquartile mean of the improvements of all runs of all tasks, with bootstrap intervals; no verdict."""
    rows = []
    for name in across.differences if len(across.tasks) > 1 else []:
        found = across.improvements(name)
        if isinstance(found, str):
            rows.append((False, (name, f"- ({found})", "-")))
            continue
        scores = np.array([d.mean(1) for d in found.values()]).T
        others = resampled(across, name)
        wider = interval_text(*stratified_interval(scores, **others)).strip() if others else "-"
        rows.append((False, (name, f"{interquartile_mean(scores):+.3g}{interval_text(*stratified_interval(scores))}", wider)))
    return Table(("variant", "interquartile mean of improvements [95% interval]", "with examples and tuning, as far as known"), rows)


def sources_sentence(across: Across) -> str:
    """Return what the intervals over cells account for, for the methods."""
    found = noises_across(across)
    reasons = list(dict.fromkeys(reason for one in found for reason in one.missing))
    text = (
        "Effects over tasks and sizes, their intervals and verdicts are of training seeds, for these test examples and outcomes of tuning"
    )
    if any(one.interval for one in found):
        text += (
            ". A table has the standard errors of test examples, summed example by example over sizes and tasks that share them, and of "
            "tuning, with intervals that have all that are known, at the same levels (Banerjee 1960); so have the second interval of an "
            "interquartile mean and the bands of profiles, by resampling examples and moving the scores of a task as tuning would"
        )
    return text + (f". Where a source is missing: {'; '.join(reasons)}. " if reasons else ". ")
