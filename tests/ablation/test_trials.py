"""The trials of tuning come with a report, which states their machine time; how to tune is settled before the first of them."""

import gzip
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from attnkit.ablation.answers import answers_of, packed, packed_cells, unpacked
from attnkit.ablation.estimate import Estimate, Timing
from attnkit.ablation.machine_time import machine_time
from attnkit.ablation.outline import outline
from attnkit.ablation.plan import Plan, stored_plan
from attnkit.ablation.report import markdown
from attnkit.ablation.results import Results
from attnkit.ablation.validity import accept, stale_lines
from attnkit.cli.ablate import ablate
from attnkit.registry import ConfigurationError
from attnkit.worker.answers import Underway
from attnkit.worker.folder import PROVENANCE, UNDERWAY, write_json
from tests.ablation.conftest import made, study

LR = "model.optimizer.lr"
TUNE: dict[str, Any] = {"grid": {LR: [0.001, 0.1, 0.25]}, "seeds": 2}
Lines = list[dict[str, Any]]

pytestmark = pytest.mark.usefixtures("guessed", "undrawn")


def make(**changes: Any) -> Plan:
    return study(**{"seeds": 2, "tune": TUNE, "factors": {"model.stack.position": ["none"]}} | changes).plan(Path("runs"))


def end(plan: Plan, **provenance: Any) -> None:
    """Record the end of each run of a plan."""
    for run in plan.runs:
        folder, seed = plan.run_folder(run.key), run.job["seeds"]["data"] % 97 / 1000
        rate = run.job["recipe"]["model"].get(LR, 1.0)
        result = {"metrics": {"val/loss": abs(rate - 0.1) + seed}, "curve": [{"tokens": 10.0}], "seconds": 30.0, "clock": "processor"}
        write_json(folder / PROVENANCE, asdict(made(**provenance)))
        write_json(folder / "result.json", result)
        write_json(folder / "status.json", {"status": "ok", "wall_seconds": 60.0})


def finished(**changes: Any) -> Plan:
    """Return the plan of a tuned study whose runs have all ended."""
    plan = make(**changes)
    plan.lock_tuning()
    assert plan.trials is not None
    end(plan.trials)
    plan = make(**changes)
    plan.lock()
    end(plan)
    return plan


def lines() -> Lines:
    """Return the lines of the file of such a study."""
    plan = finished()
    return [json.loads(line) for line in gzip.decompress(packed(plan, answers_of(plan))).splitlines()]


def read_back(content: bytes, name: str = "runs.jsonl.gz") -> Results:
    Path(name).write_bytes(content)
    return Results(*unpacked(name, Path("there")))


def test_a_report_from_the_file_has_the_same_trials() -> None:
    plan = finished()
    content = packed(plan, answers_of(plan))
    stored = stored_plan(plan.study, Path("runs"))
    assert stored is not None
    assert packed(stored, answers_of(stored)) == content, "from the plan of the report, which has no trials itself"
    again = read_back(content)
    assert packed(again.plan, again.answers) == content
    assert markdown(again) == (text := markdown(Results(plan)))
    assert again.answers.trials is not None
    trials, tried = again.answers.trials
    assert (trials.runs[0].variants, trials.runs[0].seed) == (("baseline, lr=0.001",), 1_000_000)

    def metric(rate: float, seed: int) -> float:
        return float(tried.runs[trials.key_by_variant[f"baseline, lr={rate}", seed]].result["metrics"]["val/loss"])

    means = [(metric(rate, 1_000_000) + metric(rate, 1_000_001)) / 2 for rate in (0.001, 0.1, 0.25)]
    assert [mean for _, mean in again.plan.tuned["baseline"].means] == means
    assert not any(answer.result.get("curve") for answer in tried.runs.values()), "no report shows them"
    assert "All can be recomputed from the 12 trials in the file of all runs." in text
    assert "machine time: 4 runs, 2 min of processor time for training, 4 min of wall-clock time in all; 12 tuning trials, 6 min of" in text
    assert "- 12 tuning trials: " in text


def test_cells_have_their_own_trials() -> None:
    whole = study(seeds=2, tune=TUNE, factors={"model.stack.position": ["none"]}, tasks={"t": {}, "u": {"set": {"model.deep": 2}}})
    found = {}
    for cell in whole.cells():
        plan = cell.study.plan(Path("runs"))
        assert plan.trials is not None
        plan.lock_tuning()
        end(plan.trials)
        plan = cell.study.plan(Path("runs"))
        plan.lock()
        end(plan)
        found[cell.name] = (plan, answers_of(plan))
    Path("runs.jsonl.gz").write_bytes(packed_cells(whole, found))
    again = {name: unpacked(f"runs.jsonl.gz:{name}", Path("there")) for name in found}
    assert packed_cells(whole, again) == Path("runs.jsonl.gz").read_bytes()
    assert again["u"][1].trials is not None
    assert {run.seed for run in again["u"][1].trials[0].runs} == {1_010_000, 1_010_001}
    results = [Results(*one) for one in again.values()]
    assert machine_time(*results).startswith("8 runs, 4 min of processor time")
    assert machine_time(*results).endswith("24 tuning trials, 12 min of processor time for training, 24 min of wall-clock time in all")
    results[0].answers = replace(results[0].answers, trials=None)
    assert machine_time(*results).endswith("12 min of wall-clock time in all, excluding tuning of 1 cell, whose time is not known")


def one_less(found: Lines) -> Lines:
    found[0]["trials"] -= 1
    return [*found[:7], *found[8:]]


def without_value(found: Lines) -> Lines:
    """Remove a value and its trials everywhere but from the question."""
    plan = found[5]["plan"]
    gone = [run["key"] for run in plan["runs"] if run["variants"] == ["baseline, lr=0.25"]]
    plan["variants"] = [v for v in plan["variants"] if v["name"] != "baseline, lr=0.25"]
    plan["runs"] = [run for run in plan["runs"] if run["key"] not in gone]
    found[0]["plan"]["tuned"]["baseline"]["means"].pop()
    left = [*found[:6], *(line for line in found[6:] if line["key"] not in gone)]
    left[0]["trials"] = len(left) - 5
    return left


def setting(*path: Any, value: Any) -> Callable[[Lines], Lines]:
    def change(found: Lines) -> Lines:
        inside: Any = found
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = value
        return found

    return change


TUNED = (0, "plan", "tuned", "baseline")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda found: found[:-1], "cut off"),
        (lambda found: found[:5], "lines of tuning trials are missing"),
        (one_less, "its plan has 12 runs, but 11 follow"),
        (lambda found: [*found, found[-1]], "files were joined"),
        (lambda found: [*found[:-2], found[-1], found[-1]], "is missing"),
        (without_value, "the values tried for baseline are not those of its question"),
        (setting(0, "trials", value=0), "but 17 follow"),
        (setting(0, "trials", value="13"), "lines of tuning trials are missing"),
        (setting(*TUNED, "means", 0, 1, value=0.5), "do not give the means and the choice that it states for baseline"),
        (setting(*TUNED, "chosen", value={LR: 0.25}), "do not give the means and the choice"),
        (setting(*TUNED, "edges", value=[LR]), "do not give the means and the choice"),
        (setting(6, "result", "metrics", "val/loss", value=0.5), "do not give the means and the choice"),
        (setting(6, "status", value={"status": "diverged"}), "do not give the means and the choice"),
        (setting(6, "status", value={"status": "pending"}), "do not give the means and the choice"),
        (setting(0, "plan", "variants", 0, "overrides", value={LR: 0.25}), "are not those with the values that tuning chose"),
        (setting(5, "plan", "variants", 0, "overrides", value={LR: 0.5}), "its trials are not those of the values tried"),
        (setting(5, "plan", "runs", 0, "job", "seeds", "data", value=5), "do not match"),
        (setting(0, "study", "tune", value=None), "its variants are not those that were tuned"),
        (setting(0, "study", "tune", "better", value="higher"), "do not give the means and the choice"),
        (setting(0, "study", "tune", "grid", LR, 1, value=0.2), "are not those of its question"),
    ],
)
def test_a_file_whose_trials_are_damaged_or_edited_is_refused(damage: Callable[[Lines], Lines], message: str) -> None:
    Path("edited.jsonl").write_text("\n".join(map(json.dumps, damage(lines()))))
    with pytest.raises(ConfigurationError, match=rf"^edited\.jsonl has no runs of a study: .*{message}"):
        unpacked("edited.jsonl", Path("there"))


@pytest.mark.parametrize("lose", ["removed", "made again"])
def test_a_report_says_that_its_trials_are_lost(lose: str) -> None:
    plan = finished()
    assert plan.trials is not None
    one = plan.run_folder(plan.trials.runs[0].key)
    if lose == "removed":
        (one / "status.json").unlink()
    else:
        write_json(one / "result.json", {"metrics": {"val/loss": 7.0}})
    stored = stored_plan(plan.study, Path("runs"))
    assert stored is not None
    results = Results(stored)
    assert results.answers.trials is None
    again = read_back(packed(stored, results.answers))
    for text in (markdown(results), markdown(again)):
        assert "The file of all runs has no trials." in text
        assert "4 min of wall-clock time in all, excluding tuning, whose time is not known" in text


def test_trials_that_another_study_made_are_recorded_too() -> None:
    finished()
    plan = make(name="other")
    assert plan.tuned
    plan.lock()
    end(plan)
    stored = stored_plan(plan.study, Path("runs"))
    assert stored is not None
    assert answers_of(stored).trials is not None


def test_a_damaged_plan_of_trials_is_recreated_once_it_is_removed() -> None:
    plan = finished()
    file = Path("runs/s.tuning/plan.json")
    file.write_text("{")
    stored = stored_plan(plan.study, Path("runs"))
    assert stored is not None
    with pytest.raises(ConfigurationError, match=r"runs/s\.tuning/plan\.json is damaged"):
        answers_of(stored)
    file.unlink()
    assert answers_of(stored).trials is None
    make().lock()
    assert answers_of(stored).trials is not None


def test_machine_time_says_what_is_missing() -> None:
    assert machine_time(Results(make())).endswith("excluding tuning, whose time is not known"), "before it has ended"
    plan = finished()
    write_json(plan.run_folder(plan.runs[0].key) / "status.json", {"status": "failed", "kind": "killed", "message": "killed"})
    said = machine_time(Results(plan))
    assert "4 runs, 2 min of processor time for training, 3 min of wall-clock time in all (without 1 run whose time" in said


def test_a_repeated_trial_is_compared_with_the_one_in_the_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plan = finished()
    Path("runs.jsonl.gz").write_bytes(packed(plan, answers_of(plan)))
    result = {"metrics": {"val/loss": 0.5}, "batch_hash": "h"}

    def carry_out(job: Any) -> int:
        write_json(job.folder / "result.json", result)
        return 0

    monkeypatch.setattr("attnkit.worker.job.Job.carry_out", carry_out)
    assert ablate(["reproduce", "runs.jsonl.gz", "baseline, lr=0.25:1000001", "--folder", "there"]) == 1
    assert "| 0.5  differs" in capsys.readouterr().out


def test_the_plan_counts_trials_and_the_runs_after_them() -> None:
    plan = make()
    times = Estimate(timings={v.name: Timing(seconds=30.0, basis="a probe") for v in plan.variants}, failed={}, logged=frozenset())
    assert "16 runs to do (12 trials of tuning, then 4 runs of the results): about 8 min, one" in outline(plan, times, jobs=1)[-1]
    search = {"search": {LR: {"low": 0.001, "high": 0.1}}, "trials": 12, "seeds": 2}
    plan = make(tune=search)
    assert "52 runs to do (48 trials of tuning, then 4 runs of the results): about 26 min, one" in outline(plan, times, jobs=1)[-1]


def test_accepted_trials_are_not_shown_as_stale_and_the_report_names_them() -> None:
    plan = make()
    plan.lock_tuning()
    assert plan.trials is not None
    end(plan.trials, data={"words.tsv": "0" * 16})
    assert not make().tuned
    assert accept(plan.trials, "another file with the same words") == 12
    plan = make()
    assert plan.tuned
    assert stale_lines(plan) == []
    plan.lock()
    end(plan)
    assert "- 12 tuning trials accepted because: another file with the same words" in markdown(Results(plan))


def test_a_change_of_tuning_is_refused_once_a_trial_is_known() -> None:
    plan = make()
    plan.lock_tuning()
    assert plan.trials is not None
    end(replace(plan.trials, runs=plan.trials.runs[:1]))
    assert not make().refuse_other()
    for change in ({"seeds": 3}, {"grid": {LR: [0.001, 0.1]}}, {"metric": "val/other", "better": "lower"}):
        key = next(iter(change))
        with pytest.raises(ConfigurationError, match=rf"runs/s\.tuning has trials of another tuning: tune\.{key}.* changed since"):
            make(tune=TUNE | change).refuse_other()
    with pytest.raises(ConfigurationError, match=r"runs/s\.tuning has results of another study: min_effect changed since"):
        make(min_effect=0.1).refuse_other()


def test_a_question_may_change_until_a_run_answers_it() -> None:
    wrong = {"tune": None, "metric": "val/los", "better": "lower"}
    plan = make(**wrong)
    plan.lock()
    with pytest.raises(ConfigurationError, match="metric changed since"):  # nothing shows that it cannot be answered
        make(tune=None).refuse_other()
    end(replace(plan, runs=plan.runs[:1]))
    plan = make(tune=None)
    assert not plan.refuse_other()
    plan.lock()
    assert json.loads(Path("runs/s/study.json").read_text())["runs_before"] == 1
    with pytest.raises(ConfigurationError, match="metric changed since"):
        make(**wrong).refuse_other()


@pytest.mark.parametrize("tune", [None, TUNE])
def test_a_run_that_was_interrupted_before_a_validation_is_no_answer(tune: Any) -> None:
    plan = make(tune=tune)
    (plan.lock if tune is None else plan.lock_tuning)()
    first = plan.run_folder(plan.all_runs[0].key)
    first.mkdir(parents=True)
    (first / "stderr.txt").touch()
    write_json(first / UNDERWAY, asdict(Underway(step=3)))
    assert not make(tune=tune, min_effect=0.1).refuse_other()
    write_json(first / UNDERWAY, asdict(Underway(step=3, curve=({"step": 3, "val/loss": 1.0},))))
    with pytest.raises(ConfigurationError, match="min_effect changed since"):
        make(tune=tune, min_effect=0.1).refuse_other()


def test_a_run_that_diverged_is_an_answer() -> None:
    plan = make(tune=None)
    plan.lock()
    write_json(plan.run_folder(plan.runs[0].key) / "status.json", {"status": "failed", "kind": "configuration", "message": "no"})
    assert not make(tune=None, min_effect=0.1).refuse_other()
    write_json(plan.run_folder(plan.runs[1].key) / "status.json", {"status": "diverged"})
    with pytest.raises(ConfigurationError, match="min_effect changed since"):
        make(tune=None, min_effect=0.1).refuse_other()


def test_the_metric_of_tuning_may_be_corrected_too() -> None:
    wrong = make(tune=TUNE | {"metric": "val/los", "better": "lower"})
    wrong.lock_tuning()
    assert wrong.trials is not None
    end(replace(wrong.trials, runs=wrong.trials.runs[:1]))
    plan = make()
    plan.lock_tuning()
    assert json.loads(Path("runs/s.tuning/tune.json").read_text())["metric"] is None
    with pytest.raises(ConfigurationError, match=r"tune\.metric"):
        make(tune=TUNE | {"metric": "val/los", "better": "lower"}).lock_tuning()


def test_runs_of_untuned_variants_are_no_answers() -> None:
    untuned = make(tune=None)
    untuned.lock()
    end(untuned)
    plan = make(name="tuned")
    assert {run.key for run in plan.runs} == {run.key for run in untuned.runs}
    results = Results(plan)
    assert not results.complete
    assert {c.verdict for c in results.family} == {"inconclusive"}
    assert [c.mean for c in results.family] == [None]


def test_trials_of_a_search_that_another_study_made_are_recorded_too() -> None:
    plan = make()
    plan.lock_tuning()
    assert plan.trials is not None
    end(plan.trials)
    file = Path("runs/s.tuning/plan.json")
    first = json.loads(file.read_text())
    first["variants"] = [v for v in first["variants"] if v["overrides"][LR] == 0.1]  # the plan of the first values
    first["runs"] = [run for run in first["runs"] if run["variants"][0].endswith("lr=0.1")]
    write_json(file, first)
    plan = make()
    plan.lock()
    end(plan)
    known = stored_plan(plan.study, Path("runs"))
    assert known is not None
    assert answers_of(known).trials is not None
