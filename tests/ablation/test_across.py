"""Studies of several tasks and sizes: cells that share alpha, and statements over all of them."""

import gzip
import json
import math
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from attnkit.ablation import Study
from attnkit.ablation.across import Across
from attnkit.ablation.across_noise import robust_table
from attnkit.ablation.across_report import methods_across, write_across
from attnkit.ablation.answers import unpacked, whole_in
from attnkit.ablation.cells import Cell, cells, lock_cells
from attnkit.ablation.certificate import sentences_across
from attnkit.ablation.question import add_seeds
from attnkit.ablation.results import Results
from attnkit.ablation.statistics import mean_of_tasks, mean_over_tasks, power, slope
from attnkit.cli.ablate import ablate
from attnkit.registry import ConfigurationError
from attnkit.worker.answers import Inspection
from attnkit.worker.folder import PROVENANCE, write_json
from tests.ablation.conftest import made, study

pytestmark = pytest.mark.usefixtures("guessed")

TASKS = {
    "one": {},
    "two": {"metric": "val/accuracy", "better": "higher", "min_effect": 2.0, "set": {"model.b": 2}},
    "three": {"set": {"model.c": 1}},
}
SCALES = {"small": {"at": 1, "set": {"model.d": 1}}, "large": {"at": 4, "set": {"model.d": 4}}}


def several(**changes: Any) -> Study:
    return study(**{"min_effect": 0.5, "seeds": 4, "factors": {"model.a": [1]}, "tasks": TASKS, "scales": SCALES} | changes)


def answered(spec: Study, value: Callable[[Any, int, bool], float | None], folder: str = "runs") -> Across:
    """Return the results of all cells, from a value for each cell, seed, and whether it is the variant (None: diverged)."""
    found = []
    for cell in spec.cells():
        plan = cell.study.plan(folder)
        plan.lock()
        for run in plan.runs:
            number = value(cell, run.seed % 10_000, run.variants == ("a=1",))
            write_json(plan.run_folder(run.key) / PROVENANCE, asdict(made()))
            write_json(plan.run_folder(run.key) / "result.json", {"metrics": {cell.study.metric: number}, "curve": []})
            write_json(plan.run_folder(run.key) / "status.json", {"status": "diverged" if number is None else "ok"})
        found.append((cell, Results(plan)))
    return Across(spec, found)


def test_each_cell_is_a_study_and_all_share_half_of_alpha() -> None:
    found = several().cells()
    assert [cell.name for cell in found] == [f"{task}.{scale}" for task in TASKS for scale in SCALES]
    assert found[0].study.name == "s.one.small"
    assert {cell.study.alpha for cell in found} == {0.05 / 2 / 6}
    assert [(cell.study.metric, cell.study.better, cell.study.min_effect) for cell in found[::2]] == [
        ("val/loss", "lower", 0.5),
        ("val/accuracy", "higher", 2.0),
        ("val/loss", "lower", 0.5),
    ]
    assert [cell.study.seeds[0] for cell in found] == [0, 0, 10_000, 10_000, 20_000, 20_000], "tasks share no random numbers; sizes do"
    assert found[-1].study.set == {"model.c": 1, "model.d": 4}
    assert [cell.size for cell in found] == [1, 4] * 3
    assert len({run.key for cell in found for run in cell.study.plan("runs").runs}) == 48, "6 cells, 2 variants, 4 seeds"
    assert cells(study())[0].study == study(), "a study of one task is its only cell"


def test_aggregates_average_improvements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d = {cell.name: rng.normal(1.0 + cell.size / 4, 0.1, 4) for cell in several().cells()}  # improvements in units of min_effect
    unit = {"one": -0.5, "two": 2.0, "three": -0.5}  # lower is better where it is negative
    across = answered(several(), lambda cell, s, ours: 10.0 * s + ours * unit[cell.task] * d[cell.name][s])
    means = [np.mean([d[f"{task}.{scale}"] for scale in SCALES], axis=0) for task in TASKS]
    by_task = [np.array([d[f"{task}.{scale}"] for scale in SCALES]).T for task in TASKS]
    level = 0.025 / 6
    wanted = [mean_of_tasks(means, alpha=level), mean_over_tasks(means, alpha=level), *(slope(x, [1, 4], alpha=level) for x in by_task)]
    got = [a.effect for a in across.aggregates]
    for ours, theirs in zip(got, wanted, strict=False):
        assert ours is not None
        assert (ours.mean, ours.p, *ours.interval) == pytest.approx((theirs.mean, theirs.p, *theirs.interval))
    assert [(a.question.over, a.question.per_doubling) for a in across.aggregates] == [
        ("these 3 tasks", False),
        ("tasks like these", False),
        *((task, True) for task in TASKS),
        ("these 3 tasks", True),
    ]
    assert across.level == level
    assert across.aggregates[0].verdict == "better"
    assert across.aggregates[-1].verdict == "grows"
    for table, level in ((across.aggregates_table(), 0.05), (across.cells_table(), 0.05)):
        for shown, (*_, p, _) in table.rows:
            assert shown == (p.startswith("<") or float(p) < level), "adjusted p-values are read beside alpha, whatever its parts"
    assert across.unit == "the smallest difference that matters"


def test_equivalence_over_tasks_uses_the_minimum_effect() -> None:
    near = answered(several(), lambda cell, s, ours: 10.0 * s + ours * 0.001 * (s - 1.5))
    assert near.aggregates[0].verdict == "equivalent"


def test_improvements_default_to_fractions_of_the_reference() -> None:
    tasks = {"one": {}, "two": {"set": {"model.b": 2}}}
    across = answered(several(min_effect=None, tasks=tasks, scales={}), lambda cell, s, ours: 10.0 + 0.1 * s - ours * (1.0 + 0.01 * s))
    [aggregate] = across.aggregates
    assert aggregate.effect is not None
    assert aggregate.effect.mean == pytest.approx(1.015 / 10.15)
    assert across.unit == "the reference's mean"


def test_an_improvements_spread_includes_that_of_an_estimated_unit() -> None:
    tasks = {"one": {}, "two": {"set": {"model.b": 2}}}
    x = [8.0, 9.0, 11.0, 12.0]  # the reference; the difference is a tenth of its mean for every seed

    def value(cell: Any, s: int, ours: bool) -> float:
        return x[s] - ours

    number = answered(several(tasks=tasks, scales={}, min_effect=1.0), value).aggregates[0].effect
    share = answered(several(tasks=tasks, scales={}, min_effect="10%"), value, "share").aggregates[0].effect
    assert number is not None
    assert share is not None
    assert number.mean == pytest.approx(share.mean) == pytest.approx(1.0)
    assert number.sd < 1e-5
    assert share.sd == pytest.approx(float(np.std(x, ddof=1)) / 10, rel=1e-6)


def test_equal_improvements_within_the_metrics_resolution_are_inconclusive() -> None:
    """Rounding in float64 once gave slopes of 1e-16 with p = 0, which "grow"."""
    scales = {str(at): {"at": at, "set": {"model.d": at}} for at in (10, 30, 100)}
    across = answered(several(scales=scales), lambda cell, s, ours: 1.0 - 0.1 * ours)
    assert {a.verdict for a in across.aggregates if a.question.per_doubling} == {"inconclusive"}
    tasks = {"one": {}, "two": {"set": {"model.b": 2}}}
    coarse = answered(several(tasks=tasks, scales={}, min_effect=0.01, resolution=0.1), lambda cell, s, ours: 1.0 - 0.1 * ours, "coarse")
    assert {a.verdict for a in coarse.aggregates} == {"inconclusive"}, "one step of the metric, as in each cell"


def test_a_diverged_run_replaces_the_aggregate_with_a_reason() -> None:
    across = answered(several(), lambda cell, s, ours: None if (cell.name, s, ours) == ("two.large", 1, True) else 1.0 + s)
    assert {a.reason for a in across.aggregates} == {"1 run of two.large diverged"}
    assert {a.verdict for a in across.aggregates} == {"inconclusive"}
    assert "- (1 run of two.large diverged)" in write_across(across, Path("runs")).with_name("report.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scales": {"small": {"at": 1, "set": {}}}}, "at least two sizes"),
        ({"scales": {"a": {"at": 1, "set": {}}, "b": {"at": 1, "set": {}}}}, "sizes with different numbers"),
        ({"scales": {"a": {"at": 0, "set": {}}, "b": {"at": 1, "set": {}}}}, "above 0"),
        ({"tasks": {"a b": {}}}, "names a folder"),
        ({"tasks": {"a": {"recipi": "x"}}}, "recipi"),
        ({"tasks": {"a": {"recipe": "nowhere"}}}, "no recipe 'nowhere'"),
        ({"seeds": None, "decide": {"max_seeds": 8}}, "the number of seeds is fixed"),
    ],
)
def test_invalid_tasks_and_sizes_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        several(**changes)


def test_tasks_with_identical_runs_are_rejected() -> None:
    Path("s.yaml").write_text("recipe: tiny.yaml\nfactors: {model.a: [1]}\ntasks: {one: {}, two: {}}\n")
    with pytest.raises(ConfigurationError, match="one and two have a composition in common, which aggregates would count twice"):
        ablate(["plan", "s.yaml", "--no-probe"])


def test_tasks_and_sizes_cannot_change_after_the_first_results() -> None:
    spec, folder = several(), Path("runs")
    lock_cells(spec, folder, begins=False)
    lock_cells(spec, folder, begins=True)
    lock_cells(spec, folder, begins=False)
    others = {"one": {}, "two": TASKS["two"], "four": {"set": {"model.c": 1}}}
    larger = SCALES | {"large": {"at": 8, "set": {"model.d": 4}}}
    for key, changes in (("tasks", {"tasks": others}), ("sizes", {"scales": larger}), ("tasks", {"tasks": {"one": {}}})):
        with pytest.raises(ConfigurationError, match=f"runs/s has results of another study: {key} changed since"):
            lock_cells(several(**changes), folder, begins=False)


def test_single_cell_commands_require_a_cell() -> None:
    Path("s.yaml").write_text("recipe: tiny.yaml\nfactors: {model.a: [1]}\ntasks: {one: {}, two: {}}\n")
    assert Study.from_yaml("s.yaml:two").name == "s.two"
    for action in (["logs", "s.yaml", "baseline:0"], ["seeds", "s.yaml", "--add", "1", "--spend", "0.01"]):
        with pytest.raises(ConfigurationError, match=r"the study has 2 cells; choose one, as in s.yaml:one"):
            ablate(action)
    with pytest.raises(ConfigurationError, match=r"s.yaml has no cell 'tow'\. Did you mean 'two'"):
        Study.from_yaml("s.yaml:tow")


def test_every_task_may_name_its_own_recipe() -> None:
    content = {"factors": {"model.a": [1]}, "tasks": {"one": {"recipe": "tiny.yaml"}, "two": {"recipe": "tiny.yaml"}}}
    assert [Path(cell.study.recipe).name for cell in Study.from_dict(content, file=Path("s.yaml")).cells()] == ["tiny.yaml"] * 2
    with pytest.raises(ConfigurationError, match="it needs the key recipe"):
        Study.from_dict({"factors": {"model.a": [1]}, "tasks": {"one": {}}}, file=Path("s.yaml"))


def test_identical_variants_rarely_yield_a_verdict(seed: int) -> None:
    """A/A: some aggregate is false in at most 1 of 40 studies, because their share of alpha is .025."""
    rng = np.random.default_rng(seed)
    spec = several()
    across = answered(spec, lambda cell, s, ours: 1.0)
    wrong = 0
    for _ in range(200):
        for _, results in across.results:
            for key in results.result:
                results.result[key] = {"metrics": {results.study.metric: float(rng.normal())}}
        fresh = Across(spec, across.results)
        wrong += any(a.verdict not in ("inconclusive", "equivalent") for a in fresh.aggregates)
    assert wrong <= 18, "the quantile at one in a million of 200 studies at .025"


def test_the_report_carries_the_error_rate_and_the_power_of_its_aggregates() -> None:
    """The A/A rate is at most .025, their half of alpha, and the power of 8 seeds is that of the noncentral t."""
    across = answered(several(seeds=8), lambda cell, s, ours: 1.0 + s)
    wrong, right, by = sentences_across(across)
    rates = [float(rate) for rate in re.findall(r"(\d\.\d{3}) ±", wrong)]
    assert len(rates) == 2
    assert max(rates) <= stats.binom.ppf(1 - 5e-7, 2000, 0.025) / 2000
    found = {over: float(rate) for rate, over in re.findall(r"(\d\.\d{3}) ± \S+ and \d\.\d{3} ± \S+ for ([^;]+)", right)}
    assert list(found) == ["these 3 tasks", "tasks like these", "one task, per doubling", "these 3 tasks, per doubling"]
    level = 0.025 / 6
    noise = math.sqrt(1 / 2)  # sd of the slope over two sizes that are two doublings apart, or of the mean over them
    ratios = ((math.sqrt(3) / noise, 8), (math.sqrt(8) / noise, 3), (1 / noise, 8))
    wanted = [power(ratio, count, alpha=level) for ratio, count in ratios]
    assert list(found.values())[:3] == pytest.approx(wanted, abs=5 / math.sqrt(4 * 2000))
    assert by.startswith("by 2,000 simulated studies each")
    html = write_across(across, Path("runs")).read_text()
    assert right.split(";")[0] in html
    numbers = pd.read_csv("runs/s/report.csv")
    assert numbers["improvement"].tolist() == pytest.approx([a.effect.mean for a in across.aggregates if a.effect is not None])
    assert (numbers["interval_low"] <= numbers["improvement"]).all()
    assert list(numbers["verdict"]) == [a.verdict for a in across.aggregates]


def test_every_table_shows_missing_aggregates(monkeypatch: pytest.MonkeyPatch) -> None:
    def inspect(recipe: str, compositions: Any, **_: Any) -> list[Inspection]:
        refused = {"error": "they do not fit", "kind": "illegal"}
        both = ({"model.a": 2, "model.b": 2}.items() <= over.items() for over in compositions)
        return [
            Inspection(recipe={"model": o, "data": {"name": "d"}}, takes_seed=True, **refused if b else {})  # type: ignore[arg-type]
            for o, b in zip(compositions, both, strict=True)
        ]

    monkeypatch.setattr("attnkit.ablation.planning.inspect", inspect)
    spec = several(factors={"model.a": [1, 2]}, scales={})
    lost = answered(spec, lambda cell, s, ours: None if (cell.name, s, ours) == ("one", 1, True) else 1.0 + s)
    assert lost.partial == [("a=2", "baseline", "two")]
    assert robust_table(lost).rows == [(False, ("a=1", "- (1 run of one diverged)", "-"))]
    assert "- (two does not compare them)" in [cells[3] for _, cells in lost.aggregates_table().rows]
    assert [cells[1::2] for _, cells in lost.cells_table().rows if cells[0] == "a=2"][1] == ("two", "- (not compared)", "-")


def test_seeds_added_to_one_cell_change_the_stated_error_rate_but_no_aggregate() -> None:
    spec = several(tasks={"one": {}, "two": {"set": {"model.b": 2}}}, scales={})
    before = answered(spec, lambda cell, s, ours: 1.0 + s - 0.1 * (s + 1) * ours)
    (cell, _), *rest = before.results
    more = Results(add_seeds(cell.study, Path("runs"), 2, spend=0.01).plan("runs"))
    after = Across(spec, [(cell, more), *rest])
    assert after.aggregates == before.aggregates, "not '4 runs of one have no value'"
    assert "any false verdict is at most 0.05." in methods_across(before)
    assert "any false verdict is at most 0.06, including 0.01 that was paid for added seeds of cells" in methods_across(after)


def test_aggregates_of_interactions_have_their_own_wording(capsys: pytest.CaptureFixture[str]) -> None:
    """How much better the two are together than the sum of their effects, over tasks and by size, in the same family."""
    factors = {"model.a": [1], "model.b": [2]}
    spec = several(tasks={"one": {}, "three": {"set": {"model.c": 1}}}, factors=factors, design="full_factorial", seeds=5)
    found = []
    for cell in spec.cells():
        plan = cell.study.plan("runs")
        plan.lock()
        for run in plan.runs:
            both = run.job["recipe"]["model"].keys() >= {"model.a", "model.b"}
            number = 10.0 + run.seed % 10 - both * (2.0 + cell.size + 0.01 * (run.seed % 10_000) ** 2)
            write_json(plan.run_folder(run.key) / PROVENANCE, asdict(made()))
            write_json(plan.run_folder(run.key) / "result.json", {"metrics": {cell.study.metric: number}, "curve": []})
            write_json(plan.run_folder(run.key) / "status.json", {"status": "ok"})
        found.append((cell, Results(plan)))
    across = Across(spec, found)
    assert [name for name, _ in across.names] == ["a=1", "b=2", "a=1 x b=2"]
    assert across.level == 0.025 / (3 * 4), "interactions are in the family"
    mean, slope_one, *_ = [a for a in across.aggregates if a.variant == "a=1 x b=2"]
    assert mean.effect is not None
    assert mean.effect.mean == pytest.approx((2.0 + 2.5 + 0.01 * 6) / 0.5), "the joint improvement beyond the sum of the two"
    assert (mean.verdict, slope_one.verdict) == ("an interaction", "changes"), "of which no sign is better"
    assert across.differences == ["a=1", "b=2"]
    assert [cells[0] for _, cells in robust_table(across).rows] == ["a=1", "b=2"], "no share of runs that improve"
    assert {cells[-1] for _, cells in across.cells_table().rows if cells[0] == "a=1 x b=2"} == {"an interaction"}


def test_the_methods_section_mentions_only_what_the_page_shows() -> None:
    everything = methods_across(answered(several(), lambda cell, s, ours: 1.0 + s))
    assert "6 cells (3 tasks, 2 sizes)" in everything
    words = ("'These tasks'", "'Tasks like these'", "'Per doubling'", "interquartile")
    assert all(word in everything for word in words)
    assert "An interaction" not in everything
    sizes = methods_across(answered(several(tasks={}), lambda cell, s, ours: 1.0 + s, "sizes"))
    assert "2 cells (2 sizes)" in sizes
    assert [word for word in words if word in sizes] == ["'Per doubling'"]
    assert "counts as diverged" not in sizes
    counting = answered(several(tasks={}, count_as_diverged=["error"]), lambda cell, s, ours: 1.0 + s, "counting")
    assert "A run that failed in training with an error counts as diverged, as the study declares." in methods_across(counting)


@pytest.mark.parametrize(
    ("min_effect", "unit"),
    [
        (0.5, "the smallest difference that matters. "),
        ("10%", "the smallest difference that matters, whose own noise is included, to first order. "),
        (None, "the reference's mean, whose own noise is included, to first order. "),
    ],
)
def test_the_methods_section_says_whether_the_noise_of_the_unit_is_included(min_effect: float | str | None, unit: str) -> None:
    across = answered(several(tasks={}, min_effect=min_effect), lambda cell, s, ours: 1.0 + s)
    assert f"in units of {unit}" in methods_across(across)


def files(folder: str) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()}


def result_of(cell: Cell[Any], seed: int, ours: bool) -> float:
    return 1.0 + 0.1 * seed - ours * (0.5 + 0.01 * seed * seed) * (-1 if cell.task == "two" else 1)


def prepared() -> None:
    """Write the results of a study of six cells, one of which has a further seed without a value."""
    content = {"recipe": "tiny.yaml", "min_effect": 0.5, "seeds": 4, "factors": {"model.a": [1]}, "tasks": TASKS, "scales": SCALES}
    Path("s.yaml").write_text(json.dumps(content))
    answered(several(), result_of)
    one = next(cell.study for cell in several().cells() if cell.name == "two.small")
    add_seeds(one, Path("runs"), 1, spend=0.01)
    one.plan("runs").lock()


@cache
def reported() -> tuple[str, dict[str, bytes]]:
    """Return the text of that study's report, and all its files; it is written once, because drawing six reports takes seconds."""
    prepared()
    with redirect_stdout(StringIO()) as said:
        assert ablate(["report", "s.yaml", "--folder", "runs"]) == 1
    return said.getvalue(), {name: content for name, content in files("runs").items() if re.match(r"s(\.\w+)*/(report|runs|figures)", name)}


def test_the_overall_report_covers_every_cell() -> None:
    said, made = reported()
    assert "== one.small" in said
    assert "Report: runs/s/report.html" in said
    html = made["s/report.html"].decode()
    assert html.count("<svg") == 2
    assert 'href="../s.three.large/report.html"' in html
    assert "tasks like these" in html
    assert "s.two.large/report.html" in made
    assert "reproduce s.yaml:two.large baseline:10000" in made["s.two.large/report.md"].decode()
    prepared()
    assert ablate(["compare", "s.yaml:two.large", "a=1", "baseline", "--folder", "runs"]) == 0


def test_the_overall_file_regenerates_every_report(capsys: pytest.CaptureFixture[str]) -> None:
    _, expected = reported()
    assert {"s/report.html", "s/runs.jsonl.gz", "s.three.large/runs.jsonl.gz"} <= expected.keys()
    Path("shipped").mkdir()
    Path("shipped/runs.jsonl.gz").write_bytes(expected["s/runs.jsonl.gz"])
    assert ablate(["report", "shipped/runs.jsonl.gz", "--folder", "again"]) == 1
    said = capsys.readouterr().out
    assert "== two.large" in said
    assert "Report: again/s/report.html" in said
    assert files("again") == expected
    assert ablate(["compare", "shipped/runs.jsonl.gz:two.large", "a=1", "baseline", "--folder", "again"]) == 0


def test_the_overall_file_is_read_by_cell() -> None:
    name, one, large = "whole.jsonl.gz", "one.jsonl.gz", "large.jsonl.gz"
    for file, folder in ((name, "s"), (one, "s.one.small"), (large, "s.two.large")):
        Path(file).write_bytes(reported()[1][f"{folder}/runs.jsonl.gz"])
    for wrong in (name, f"{name}:two.huge"):
        with pytest.raises(ConfigurationError, match=r"gz has 6 cells; choose one, as in .*gz:one\.small\..*Cells: one\.small, one\.large"):
            unpacked(wrong, Path("there"))
    with pytest.raises(ConfigurationError, match=r"gz holds the runs of a single study: leave out :two"):
        unpacked(f"{one}:two", Path("there"))
    whole = whole_in(name)
    assert whole is not None
    assert vars(whole) == vars(several())
    assert whole_in(f"{name}:two.large") is None
    assert whole_in(one) is None
    assert unpacked(f"{name}:two.large", Path("runs")) == unpacked(large, Path("runs"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: lines[:-1],
        lambda lines: [lines[0], *lines[2:], lines[1]],
        lambda lines: [lines[0].replace('"one.large": 9, "two.small": 11', '"two.small": 11, "one.large": 9'), *lines[1:]],
        lambda lines: [lines[0].replace('"min_effect": 0.5', '"min_effect": 0.4'), *lines[1:]],
        lambda lines: [lines[0].replace('"seeds": [0, 1, 2, 3]', '"seeds": [0, 1, 3, 2]'), *lines[1:]],
        lambda lines: [lines[0].replace('"cells": {', '"cells": 5, "others": {'), *lines[1:]],
        lambda lines: [lines[0].replace('"alpha": 0.05', '"alpha": 0.1'), *lines[1:]],
    ],
)
def test_a_damaged_overall_file_is_rejected(damage: Callable[[list[str]], list[str]]) -> None:
    whole = reported()[1]["s/runs.jsonl.gz"]
    lines = gzip.decompress(whole).decode().splitlines()
    changed = damage(lines)
    assert changed != lines
    Path("damaged.jsonl").write_text("\n".join(changed))
    with pytest.raises(ConfigurationError, match=r"damaged\.jsonl has no runs of a study: "):
        unpacked("damaged.jsonl:one.small", Path("there"))
