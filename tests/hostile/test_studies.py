"""Studies whose files are damaged, edited by hand or named to do harm."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnkit import ConfigurationError
from attnkit.ablation import Study
from attnkit.ablation.engine import run_plan
from attnkit.ablation.report import latex, made_by, markdown, page, write_report
from attnkit.ablation.results import Results
from attnkit.worker.folder import PROVENANCE, key_of, result_of, status_of, write_json
from tests.ablation.conftest import folder, guessed, study, worker  # noqa: F401

METRICS = {"val/loss": 1.0}
HOSTILE = "<script>alert(1)</script>|`x`[a](javascript:b)\n=cmd()"


def finished(metrics: Any = METRICS, **changes: Any) -> Any:
    """Return the plan of a study whose runs have results."""
    plan = study(**changes).plan("runs")
    plan.lock()
    for i, run in enumerate(plan.runs):
        result = {"metrics": {"val/loss": 1.0 + i}, "batch_hash": str(run.seed)}
        write_json(plan.run_folder(run.key) / "result.json", result)
        write_json(plan.run_folder(run.key) / "status.json", {"status": "ok", "wall_seconds": 1.0})
    return plan


@pytest.mark.parametrize("name", ["..", ".", "a/../../b", "a/b", "", "a\0b", "a\nb", "a\n", "-a/", "x" * 200, ".hidden"])
def test_a_study_that_would_write_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot name a results folder"):
        study(name=name)


CHANGES = [{"alpha": "x"}, {"seeds": 10**9}, {"metric": 5}, {"retries": 5}, {"timeout": "x"}, {"set": [1]}, {"name": 5}, {"min_effect": []}]


@pytest.mark.parametrize("changes", [*CHANGES, {"factors": {"../x": [{"model.a": 1}]}}], ids=str)
def test_an_invalid_setting_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        study(**changes)


def test_a_design_with_too_many_variants_is_rejected() -> None:
    factors = {f"model.x{i}": list(range(10)) for i in range(20)}
    with pytest.raises(ConfigurationError, match="design full_factorial makes"):
        study(design="full_factorial", factors=factors).expanded()


DAMAGE = {
    "status.json": [
        "", "{", "[]", "5", "null", '{"status": "ok?"}', '{"status": "failed"}', '{"status": "ok", "wall_seconds": "x"}', "\xff",
    ],
    "result.json": [
        "", '{"metrics"', "[]", "{}", '{"metrics": 5}', '{"metrics": {"val/loss": "1"}}', '{"metrics": {"val/loss": NaN}}',
        '{"metrics": {"val/loss": ' + "9" * 5000 + "}}", '{"metrics": {}, "curve": [5]}', '{"metrics": {}, "lengths": []}',
        '{"metrics": {}, "tokens": "many"}', '{"metrics": {}, "seconds": true}', "[" * 5000, '{"metrics": {"\\ud800": 1}}',
    ],
}  # fmt: skip


@pytest.mark.usefixtures("guessed")
@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_runs_count_as_unfinished_and_are_listed_in_the_report(name: str) -> None:
    plan = finished(seeds=5)
    damaged = plan.runs[: len(DAMAGE[name])]
    for run, content in zip(damaged, DAMAGE[name], strict=True):
        (plan.run_folder(run.key) / name).write_bytes(content.encode("latin-1"))
        status = status_of(plan.run_folder(run.key))
        assert status["status"] == "damaged", content
        assert name in status["message"]
    results = Results(plan)
    assert not results.complete
    text = markdown(results).replace("\\", "")
    assert all(f"{', '.join(run.variants)}, seed {run.seed}: damaged" in text for run in damaged)
    write_report(results, Path("out"))


@pytest.mark.usefixtures("guessed")
def test_a_result_without_the_metric_is_named() -> None:
    plan = finished()
    write_json(plan.run_folder(plan.runs[0].key) / "result.json", {"metrics": {"val/other": 1}})
    assert "its result has no val/loss" in markdown(Results(plan))


@pytest.mark.usefixtures("guessed")
def test_other_damaged_files_are_named_or_rebuilt() -> None:
    plan = finished()
    first = plan.run_folder(plan.runs[0].key)
    for content in ("{", "[]", '{"code": 5}', '{"code": {}, "data": {}, "packages": {}, "processor": {"threads": "x"}}'):
        (first / PROVENANCE).write_text(content)
        assert any("no recorded provenance of" in line for line in made_by(Results(plan)))
    assert "no recorded provenance of" in markdown(Results(plan))
    for content in ("", "[]", "{}", '{"seeds_at_start": "x"}', '{"seeds_at_start": [0], "seeds_added": 5}'):
        (plan.study_folder / "study.json").write_text(content)
        for use in (lambda: plan.lock(), lambda: study().plan("runs"), lambda: write_report(Results(plan), Path("out"))):
            with pytest.raises(ConfigurationError, match=r"study\.json is damaged"):
                use()


@pytest.mark.usefixtures("guessed")
@pytest.mark.parametrize("content", ["", "[]", "{}", '{"runs": 5}', '{"runs": [{"seed": 0}]}'])
def test_a_damaged_plan_is_named(content: str) -> None:
    from attnkit.ablation.plan import stored_plan

    plan = finished()
    assert stored_plan(plan.study, Path("runs")) is not None
    (plan.study_folder / "plan.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"plan\.json is damaged"):
        stored_plan(plan.study, Path("runs"))


def test_a_damaged_run_is_repeated(worker: Callable[[str], None]) -> None:  # noqa: F811
    plan = study(seeds=2, factors={"model.stack.position": ["none"]}).plan("runs")
    run_plan(plan, say=lambda line: None)
    folders = [plan.run_folder(run.key) for run in plan.runs]
    results = [result_of(f) for f in folders]
    (folders[0] / "status.json").write_text("")
    (folders[1] / "result.json").write_text('{"metrics"')
    (folders[1] / "job.json").write_text("{")
    (folders[2] / "status.json").unlink()
    (folders[2] / "status.json").mkdir()
    said: list[str] = []
    run_plan(plan, say=said.append)
    assert sum("running it again" in line for line in said) == 3
    assert [result_of(f) for f in folders] == results
    assert {status_of(f)["status"] for f in folders} == {"ok"}


@pytest.mark.usefixtures("guessed")
def test_names_are_escaped_in_every_report_format() -> None:
    plan = finished(factors={"model.x": {"levels": {HOSTILE: 1}}, "model.y": {"levels": {"$x": 1}}}, seeds=2)
    results = Results(plan)
    assert "<script>alert" not in page(results)
    text = markdown(results)
    assert "<script" not in text
    assert "](javascript" not in text
    assert r"\`x\`" in text
    for line in (line for line in text.splitlines() if line.startswith("| x=")):
        assert line.replace(r"\|", "").count("|") in (5, 8, 9)
    assert r"\$x" in latex(results)
    write_report(results, Path("out"))


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@x", "\t=1"])
@pytest.mark.usefixtures("guessed")
def test_a_name_cannot_become_a_spreadsheet_formula(name: str) -> None:
    from attnkit.ablation.escape import csv

    plan = finished(design="list", factors=None, variants={name: {"model.x": 1}}, seeds=2)
    results = Results(plan)
    for table in (csv(results.summary()), csv(results.frame())):
        assert f"'{name}" in table
        assert f"\n{name}" not in table
    assert json.loads(results.frame().to_json())  # the numbers stay numbers


def test_a_study_path_that_is_not_a_file_is_rejected(tmp_path: Path) -> None:
    for name in ("/dev/zero", str(tmp_path), "a\0b", "x" * 5000):
        with pytest.raises(ConfigurationError, match="no study"):
            Study.from_yaml(name)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_non_finite_number_is_rejected(number: float) -> None:
    with pytest.raises(ConfigurationError, match="is not finite"):
        key_of({"model": {"lr": number}})
