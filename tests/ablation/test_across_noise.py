"""Noise of test examples and of tuning in effects over tasks and sizes, interquartile means and performance profiles."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from attnkit.ablation import Study
from attnkit.ablation.across import Across
from attnkit.ablation.across_noise import noise_table_across, noises_across, robust_table, sources_sentence
from attnkit.ablation.across_report import figures_across, write_across
from attnkit.ablation.plan import Tuned
from attnkit.ablation.results import Results
from attnkit.ablation.statistics import (
    examples_parts,
    joint_half,
    mean_of_seeds,
    mean_over_tasks,
    parts_error,
    profile_band,
    stratified_interval,
    tuning_spread,
)
from attnkit.ablation.tuning import trials_of
from attnkit.worker.folder import PROVENANCE, write_json
from tests.ablation.conftest import made, study

pytestmark = pytest.mark.usefixtures("guessed")
NAME = "val/token_accuracy"
METRIC = {"metric": NAME, "better": "higher"}
TASKS = {"one": {}, "two": {"set": {"model.b": 2}, "min_effect": 1.0}, "three": {"set": {"model.c": 1}}}
SCALES = {"small": {"at": 1, "set": {"model.d": 1}}, "large": {"at": 4, "set": {"model.d": 4}}}
Tops = Callable[[str, str, int, bool], np.ndarray]


def several(**changes: object) -> Study:
    given = {"min_effect": 0.5, "seeds": 4, "factors": {"model.a": [1]}, "tasks": TASKS, "scales": SCALES, **METRIC}
    return study(**given | changes)


def answered(spec: Study, tops: Tops, *, below: Callable[[str], float] = lambda task: 1.0) -> Across:
    """Return the results of all cells, from the numbers of the examples for each task, size, seed, and whether it is the variant."""
    found = []
    for cell in spec.cells():
        plan = cell.study.plan("runs")
        plan.lock()
        for run in plan.runs:
            top = tops(cell.task, cell.name.rpartition(".")[2], run.seed % 10_000, run.variants == ("a=1",))
            bottom = [below(cell.task)] * len(top)
            result = {"metrics": {NAME: sum(top) / sum(bottom)}, "examples": {"token_accuracy": [top.tolist(), bottom]}, "example_set": "0"}
            write_json(plan.run_folder(run.key) / PROVENANCE, asdict(made()))
            write_json(plan.run_folder(run.key) / "result.json", result)
            write_json(plan.run_folder(run.key) / "status.json", {"status": "ok"})
        found.append((cell, Results(plan)))
    return Across(spec, found)


@pytest.fixture
def tops(seed: int) -> tuple[Tops, dict[tuple[str, str, bool], np.ndarray]]:
    """Return the numbers of 40 examples (50 for the task three), the same examples for all sizes of a task."""
    rng = np.random.default_rng(seed)
    found = {
        (task, scale, ours): rng.random((4, 50 if task == "three" else 40)) for task in TASKS for scale in SCALES for ours in (True, False)
    }
    return lambda task, scale, s, ours: found[task, scale, ours][s], found


def test_the_example_error_matches_improvements_summed_per_example(
    tops: tuple[Tops, dict[tuple[str, str, bool], np.ndarray]],
) -> None:
    """Computed by hand: the improvement of each example, averaged over sizes and over tasks with the same examples."""
    across = answered(several(), tops[0])
    unit = {"one": 0.5, "two": 1.0, "three": 0.5}
    d = {(t, s): (tops[1][t, s, True] - tops[1][t, s, False]).mean(0) / unit[t] for t in TASKS for s in SCALES}
    these, like, one, *_, all_slopes = noises_across(across)
    shared = sum(d[t, s] for t in ("one", "two") for s in SCALES) / 6
    alone = sum(d["three", s] for s in SCALES) / 6
    assert these.contrast == "a=1, these 3 tasks"
    assert these.examples == pytest.approx(math.hypot(stats.sem(shared), stats.sem(alone)))
    a = across.aggregates[0]
    assert a.effect is not None
    half = joint_half([(a.effect.sd / 2, 3), (stats.sem(shared), 39), (stats.sem(alone), 49)], alpha=across.level)
    assert these.interval == pytest.approx((a.effect.mean - half, a.effect.mean + half))
    assert one.examples == pytest.approx(stats.sem((d["one", "large"] - d["one", "small"]) / 2)), "a slope over two doublings"
    assert all_slopes.examples is not None
    assert like.examples == pytest.approx(these.examples), "one and two have the same denominators: their examples may be the same"
    assert like.tuning is None


def test_the_spread_between_tasks_includes_their_example_noise(tops: tuple[Tops, dict[tuple[str, str, bool], np.ndarray]]) -> None:
    across = answered(several(), tops[0], below=lambda task: {"one": 1.0, "two": 2.0, "three": 1.0}[task])
    _, like, *_ = noises_across(across)
    assert (like.examples, like.interval) == (None, None), "40, 40 and 50 examples with other denominators"
    assert "the spread between tasks already contains the noise" in like.missing[0]
    text = write_across(across, Path("runs")).with_name("report.md").read_text()
    assert "## Noise of test examples and tuning" in text
    assert "summed example by example over sizes and tasks that share them" in text
    [profiles, _] = figures_across(across)
    assert profiles.title.endswith("bands: 95% intervals at each point")
    assert profiles.svg is not None
    assert "FillBetween" in profiles.svg


def test_missing_noise_estimates_are_reported(tops: tuple[Tops, dict[tuple[str, str, bool], np.ndarray]]) -> None:
    across = answered(several(), tops[0])
    for key in across.results[3][1].result:
        del across.results[3][1].result[key]["examples"]
    assert noise_table_across(across).rows == []
    assert "two.large: token_accuracy was not kept by example" in sources_sentence(across)
    assert [cells[2] for _, cells in robust_table(across).rows] == ["-"]


def test_tuning_noise_is_independent_per_variant_and_task(tops: tuple[Tops, dict[tuple[str, str, bool], np.ndarray]]) -> None:
    """The sizes of a task share the seeds of tuning, so their deviations add up; tasks and variants have separate seeds."""
    spec = several(tune={"grid": {"model.lr": [1, 2]}, "seeds": 2})
    plain = answered(several(), tops[0])
    tuned = Tuned(chosen={"model.lr": 1}, means=(({"model.lr": 1}, 0.5), ({"model.lr": 2}, 0.49)), edges=())
    results = []
    for cell, one in plain.results:
        one.study = replace(cell.study, tune=spec.tune)
        one.plan = replace(one.plan, study=one.study, tuned={"baseline": tuned, "a=1": tuned})
        results.append((cell, one))
    across = Across(several(), results)
    unit, square = {"one": 0.5, "two": 1.0, "three": 0.5}, 0.0
    for task in TASKS:
        for ours in (True, False):
            errors = [stats.tstd(tops[1][task, scale, ours].mean(1)) / math.sqrt(2) for scale in SCALES]
            square += (sum(tuning_spread([0.5, 0.49], e, higher=True) for e in errors) / unit[task] / 6) ** 2
    assert noises_across(across)[0].tuning == pytest.approx(math.sqrt(square))
    [(_, cells)] = robust_table(across).rows
    assert cells[2] != "-"


def test_tasks_use_different_tuning_seeds() -> None:
    tune = {"grid": {"model.lr": [1, 2]}, "seeds": 2}
    cells = several(tune=tune).cells()
    points = {"baseline": [{"model.lr": 1}], "a=1": [{"model.lr": 1}]}
    seeds = [trials_of(cell.study, cell.study.expanded(), points)[0].seeds for cell in cells]
    assert seeds[0] == seeds[1] == (1_000_000, 1_000_001), "as before, and the same for the sizes of a task"
    assert seeds[2] == (1_010_000, 1_010_001)


def coverage(studies: int, rng: np.random.Generator, *, tasks: int, seeds: int, examples: int, shared: bool) -> np.ndarray:
    """Return how often intervals over tasks cover: of seeds alone, with examples, and for tasks like these with what they share."""
    covered = np.zeros(3)
    for _ in range(studies):
        true = rng.standard_normal(tasks)
        of_examples = 4 * rng.standard_normal((1 if shared else tasks, 1, examples)) * np.sqrt(examples / 40)
        d = 0.5 * rng.standard_normal((tasks, seeds, 1)) + of_examples + 0.3 * rng.standard_normal((tasks, seeds, examples))
        d += true[:, None, None]
        means = d.mean(2)
        these = mean_of_seeds(means.mean(0))
        parts = [examples_parts([(1 / seeds / tasks, run, np.ones(examples)) for run in task]) for task in d]
        error, df = parts_error(np.sum(parts, axis=0))
        wide = joint_half([(these.sd / math.sqrt(seeds), seeds - 1), (error, df)], alpha=0.05)
        like = mean_over_tasks(list(means))
        common = [(error, df)] if shared else []
        half = joint_half([(like.sd / math.sqrt(tasks), tasks - 1), *common], alpha=0.05)
        off = abs(these.mean - true.mean())
        covered += [off < (these.interval[1] - these.interval[0]) / 2, off < wide, abs(like.mean) < half]
    return covered / studies


@pytest.mark.parametrize("shared", [True, False])
def test_intervals_over_tasks_cover_results_on_other_examples(seed: int, shared: bool) -> None:
    studies = 300
    alone, wide, like = coverage(studies, np.random.default_rng(seed), tasks=4, seeds=4, examples=60, shared=shared)
    least = stats.binom.ppf(1e-6, studies, 0.95) / studies
    assert min(wide, like) >= least
    assert alone < least, "seeds alone do not"


def test_bootstraps_draw_the_same_examples_for_all_runs(seed: int) -> None:
    """If runs differ only by examples, the sd of the draws is the standard error of examples, to which that of tuning is added."""
    rng = np.random.default_rng(seed)
    parts = rng.standard_normal((1, 80)) - 0.0
    parts -= parts.mean()
    scores, both = np.zeros((5, 2)), [np.repeat(parts, 5, axis=0)] * 2
    low, high = stratified_interval(scores, np.mean, examples=both)
    assert (high - low) / 2 == pytest.approx(1.96 * stats.sem(parts[0]), rel=0.15), "the two tasks share them, so nothing averages out"
    low, high = stratified_interval(scores, np.mean, spreads=[1.0, 1.0])
    assert (high - low) / 2 == pytest.approx(1.96 / math.sqrt(2), rel=0.15), "tasks are tuned apart"
    ends = profile_band(scores, [0.0], spreads=[1.0, 1.0])
    assert [float(end[0]) for end in ends] == [0.0, 1.0]
    assert [float(end[0]) for end in profile_band(scores, [-0.1])] == [1.0, 1.0]
