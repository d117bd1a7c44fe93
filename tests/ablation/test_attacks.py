"""Studies that went wrong in every way: each has a report that says so in words."""

from pathlib import Path
from typing import Any

import pytest

from attnkit.ablation.across_report import write_across
from attnkit.ablation.cells import Cell
from attnkit.ablation.report import markdown, omissions
from attnkit.registry import ConfigurationError
from tests.ablation.conftest import stored, study
from tests.ablation.test_across import answered, several

pytestmark = pytest.mark.usefixtures("guessed")
GOOD = [1.0 + 0.01 * i for i in range(8)]
LOST, FAILED, EQUAL = ["diverged"] * 8, ["failed"] * 8, [1.0] * 8
TIES = [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
ATTACKS: dict[str, tuple[list[Any], list[Any], tuple[str, str], str]] = {
    "all runs failed": (FAILED, FAILED, ("inconclusive", "inconclusive"), "16 of 16 runs have no value; run or retry them"),
    "all runs diverged": (LOST, LOST, ("inconclusive", "inconclusive"), "8 of 8 runs diverged, and 8 of baseline"),
    "the baseline failed": (FAILED, GOOD, ("inconclusive", "inconclusive"), "8 of 16 runs have no value; run or retry them"),
    "the baseline diverged": (LOST, GOOD, ("better", "better"), "0 of 8 runs diverged, and 8 of baseline"),
    "one run of each side failed": (["failed", *GOOD[1:]], [*GOOD[1:], "failed"], ("inconclusive", "inconclusive"), "2 of 16 runs"),
    "ties": (TIES, TIES[::-1], ("inconclusive", "inconclusive"), "neither a difference nor equivalence is shown"),
    "equal values": (EQUAL, EQUAL, ("equivalent", "equivalent"), "the difference is shown to be smaller than 0.05"),
    "zeros": ([0.0] * 8, [0.0] * 8, ("equivalent", "equivalent"), "the difference is shown to be smaller than 0.05"),
}


@pytest.mark.parametrize("quantile", [None, 0.5])
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_damaged_study_still_gets_a_readable_report(attack: str, quantile: float | None, request: pytest.FixtureRequest) -> None:
    if quantile:  # its figures are those of the mean, except for a label
        request.getfixturevalue("undrawn")
    theirs, ours, verdicts, words = ATTACKS[attack]
    results = stored({"baseline": theirs, "position=none": ours, "position=learned": GOOD}, seeds=8, quantile=quantile)
    text = markdown(results)
    assert results.comparisons[0].verdict == verdicts[quantile is not None]
    assert words in text
    assert " nan" not in text.lower()


@pytest.mark.parametrize("quantile", [None, 0.5])
def test_runs_without_the_metric_are_reported(quantile: float | None) -> None:
    results = stored({name: list(GOOD) for name in ("baseline", "position=none", "position=learned")}, seeds=8, quantile=quantile)
    for key in results.result:
        results.result[key]["metrics"] = {}
    text = markdown(results)
    assert "its result has no val/loss" in text
    assert [c.verdict for c in results.comparisons] == ["inconclusive"] * 2


def test_a_metric_that_is_not_finite_at_the_end_of_a_run_is_listed() -> None:
    results = stored({name: list(GOOD) for name in ("baseline", "position=none", "position=learned")}, seeds=8)
    [key] = [run.key for run in results.plan.runs if "position=none" in run.variants and run.seed == 3]
    results.result[key]["metrics"] = {"val/loss": None}
    assert "position=none, seed 3: diverged (not finite: its val/loss is not a number, or infinite, at the end)" in omissions(results)
    assert len(omissions(results)) == 1
    assert results.comparisons[0].diverged == (1, 0)


def test_a_study_of_one_seed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a study needs at least 2, but has 1"):
        study(seeds=1)


@pytest.mark.parametrize("lost", ["one run of a task", "a task", "the baseline of a task", "everything", "without the metric", "equal"])
def test_every_damaged_study_of_several_tasks_gets_a_readable_report(lost: str) -> None:
    def value(cell: Cell[Any], seed: int, ours: bool) -> float | None:
        where = cell.task == "two"
        gone = {"one run of a task": where and ours and seed == 0, "a task": where, "the baseline of a task": where and not ours}
        return None if gone.get(lost, lost == "everything") else 1.0 if lost == "equal" else 1.0 + 0.1 * seed - 0.01 * seed * ours

    across = answered(several(), value)
    if lost == "without the metric":
        for _, results in across.results[2:4]:
            for key in results.result:
                results.result[key]["metrics"] = {}
    text = write_across(across, Path("runs")).with_name("report.md").read_text()
    for _, results in across.results[2:3]:
        assert "## Verdicts" in markdown(results)
    expected = {"equal": "equivalent", "without the metric": "of two.small without a value"}
    assert expected.get(lost, "diverged)") in text
    assert " nan" not in text.lower()
