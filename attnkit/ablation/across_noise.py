"""Noise in effects over tasks and sizes that seeds do not show (from test examples and tuning), and intervals that include it."""

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np

from attnkit.ablation.across import Across, Question
from attnkit.ablation.cells import Cell
from attnkit.ablation.noise import OWN, Noise, joined, moves_of, parts_of, table_of
from attnkit.ablation.results import Results
from attnkit.ablation.statistics import Effect, interquartile_mean, parts_error, stratified_interval
from attnkit.ablation.tables import Table, interval_text

IN_SPREAD = "where tasks are a sample, the spread between tasks already contains the noise of their own test examples and tuning"


class Sources:
    """The noise from test examples and from tuning in a contrast's improvements, which must exist."""

    def __init__(self, across: Across, name: str) -> None:
        self.across, self.name = across, name

    def _cells(self) -> Iterator[tuple[int, int, Cell[Any], Results, dict[str, float]]]:
        """Yield each cell with the indices of its task and size, its results, and the weights of its variants in the improvement."""
        for cell, results in self.across.results:
            scale = (1.0 if cell.study.better == "higher" else -1.0) / self.across.unit_of(cell, results, self.name)
            weights = {v: scale * w for v, w in results.contrasts[self.name].weights.items()}
            yield self.across.tasks.index(cell.task), self.across.sizes.index(cell.size), cell, results, weights

    def examples(self, weights: np.ndarray) -> list[np.ndarray] | str:
        """Return the contribution of each example to a sum of improvements with weights [tasks, sizes], or why it is unknown.

        Arrays of different lengths belong to different examples, so they are independent. Arrays of equal length are added: if the examples
        are the same, this is exact; if they differ, they are independent, so the estimate of the variance stays unbiased.
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
        """Return the contribution of each example to each run's mean over sizes, [seeds, examples] per task, or why it is unknown."""
        found: dict[int, np.ndarray] = {}
        for task, _, cell, results, of in self._cells():
            weights = {v: w / len(self.across.sizes) for v, w in of.items()}
            rows = [parts_of(results, weights, [seed]) for seed in cell.study.seeds]
            if wrong := [row for row in (*rows, parts_of(results, of, cell.study.seeds)) if isinstance(row, str)]:
                return f"{cell.name}: {wrong[0]}"
            parts = np.stack([row for row in rows if not isinstance(row, str)])
            if task in found and found[task].shape != parts.shape:
                return f"{cell.name}: sizes have different numbers of test examples"
            found[task] = found.get(task, 0.0) + parts
        return list(found.values())

    def tuning(self, weights: np.ndarray) -> np.ndarray | str:
        """Return how far repeated tuning would move each task's share of a sum with weights [tasks, sizes], or why that is unknown.

        Variants are treated as independent of each other. The sizes of a task share the tuning seeds, so their shifts are added, as if
        they were perfectly correlated.
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
        """Return whether two tasks may share test examples, judging by whether the denominators of their sums are equal."""
        below: dict[int, set[tuple[float, ...]]] = {}
        for task, _, cell, results, of in self._cells():
            metric, first = cell.study.metric_name, results.plan.key_by_variant[next(iter(of)), cell.study.seeds[0]]
            sums = results.result[first].get("examples", {}).get(metric)
            below.setdefault(task, set()).update([tuple(sums[1])] if sums else [])
        return any(one & other for one, other in combinations(below.values(), 2))


def noises_across(across: Across) -> list[Noise]:
    """Return the sources of noise of each aggregate that has an estimate, in the order of the aggregates."""
    return [_noise(Sources(across, a.variant), a.question, a.effect) for a in across.aggregates if a.effect is not None]


def _noise(sources: Sources, question: Question, effect: Effect) -> Noise:
    weights = question.weights / len(question.weights) if question.sampled else question.weights
    examples = sources.examples(weights) if not question.sampled or sources.share_examples() else IN_SPREAD
    moves = IN_SPREAD if question.sampled else sources.tuning(weights)
    errors = examples if isinstance(examples, str) else [parts_error(one) for one in examples]
    tuning = moves if isinstance(moves, str) else float(np.linalg.norm(moves))
    seeds = (effect.sd / math.sqrt(effect.df + 1), effect.df)
    return joined(f"{sources.name}, {question}", effect.mean, seeds, errors, tuning, level=sources.across.level)


def noise_table_across(across: Across) -> Table:
    """Return a row for each aggregate that has an estimate, or no rows if seeds and tasks are the only known sources of noise."""
    shown = [a.effect.p < across.level and a.verdict != "equivalent" for a in across.aggregates if a.effect is not None]
    return table_of(noises_across(across), shown, [None] * len(shown))


def resampled(across: Across, name: str) -> dict[str, Any]:
    """Return bootstrap arguments for a contrast's known sources of noise other than seeds; empty if none is known."""
    sources = Sources(across, name)
    examples, moves = sources.by_run(), sources.tuning(np.full((len(across.tasks), len(across.sizes)), 1 / len(across.sizes)))
    found: dict[str, Any] = {} if isinstance(examples, str) else {"examples": examples}
    return found | ({} if isinstance(moves, str) else {"spreads": moves.tolist()})


def robust_table(across: Across) -> Table:
    """Return the interquartile mean of the improvements of all runs of all tasks, with bootstrap intervals but no verdict."""
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
    """Return the part of the methods that says which noise the intervals over cells account for."""
    found = noises_across(across)
    reasons = list(dict.fromkeys(reason for one in found for reason in one.missing))
    text = "Intervals and verdicts over tasks and sizes account for training seeds, given these test examples and outcomes of tuning"
    if any(one.interval for one in found):
        text += (
            ". A table has the standard errors due to test examples, summed example by example over sizes and tasks that share them, and "
            "due to tuning, with intervals that include all known sources, at the same levels (Banerjee 1960). The second interval of an "
            "interquartile mean and the bands of profiles include them too: they resample examples, and move the scores of a task as "
            "tuning would"
        )
    return text + (f". Where a source is missing: {'; '.join(reasons)}. " if reasons else ". ")
