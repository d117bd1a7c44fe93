"""Failures that a study declares to be outcomes count as divergence; all others have to be repeated."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from attnkit.ablation.answers import answers_of, packed, unpacked
from attnkit.ablation.engine import retry, run_plan
from attnkit.ablation.methods import methods
from attnkit.ablation.plan import Plan
from attnkit.ablation.report import markdown, page
from attnkit.ablation.results import Results
from attnkit.ablation.validity import state_of
from attnkit.cli.ablate import ablate
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import PROVENANCE, write_json
from tests.ablation.conftest import STUDY, made, study

Use = Callable[[str], None]
FAILS = """
if NAMED in json.dumps(job["recipe"]["model"]):
    write("status.json", {"status": "failed", "kind": KIND, "message": "10 GiB", "in_training": WHERE}); sys.exit(1)
"""


def make(**changes: Any) -> Plan:
    changes = {"seeds": 5, "factors": {"model.stack.position": ["none"]}, "count_as_diverged": ["out_of_memory"]} | changes
    return study(**changes).plan(Path("runs"))


def fails(kind: str, named: str, *, in_training: bool | None = True) -> str:
    """Return the code of a worker that fails if its model's settings contain some text."""
    return FAILS.replace("KIND", repr(kind)).replace("NAMED", repr(named)).replace("WHERE", repr(in_training))


def states(plan: Plan) -> Counter[str]:
    return Counter(state_of(plan, run)["status"] for run in plan.runs)


def begun() -> Counter[int]:
    return Counter(Counter(Path("ran.txt").read_text().split()).values())


@pytest.fixture
def failing(worker: Use) -> Callable[[str], None]:
    """Let every run with `position: none` fail in training with a kind of failure."""
    return lambda kind: worker(fails(kind, "none"))


def test_a_declared_failure_is_an_outcome_with_a_verdict(failing: Use) -> None:
    failing("out_of_memory")
    said: list[str] = []
    run_plan(make(), say=said.append)
    assert sum("diverged position=none seed" in line and "10 GiB" in line for line in said) == 5
    results = Results(make())
    [found] = results.comparisons
    assert results.complete
    assert (found.verdict, found.diverged, found.p) == ("worse", (5, 0), pytest.approx(4 / 3 * 2 / 4**5))
    assert results.sentences()[-1] == "5 runs failed in training for lack of memory, which counts as divergence, as declared"
    assert "position=none, seed 0: diverged (out_of_memory: 10 GiB)" in markdown(results)
    assert "which counts as divergence, as declared" in page(results)
    assert "A run that failed in training for lack of memory counts as diverged, as the study declares" in methods(results)


def test_it_is_final(failing: Use, worker: Use) -> None:
    failing("out_of_memory")
    run_plan(make())
    worker("")
    run_plan(make(), say=(said := list[str]()).append)
    assert said == ["10 of 10 runs are already finished"]
    assert retry(make()) == 0
    assert begun() == {1: 10}


def test_a_failure_that_is_not_declared_has_to_be_repeated(failing: Use, worker: Use) -> None:
    failing("error")
    run_plan(make())
    results = Results(make())
    assert states(make()) == {"ok": 5, "failed": 5}
    assert not results.complete
    assert [c.verdict for c in results.comparisons] == ["inconclusive"]
    assert "counts as divergence" not in markdown(results)
    worker("")
    assert retry(make()) == 5
    run_plan(make())
    assert states(make()) == {"ok": 10}


def test_another_study_with_the_same_runs_counts_them_as_it_declares(failing: Use) -> None:
    failing("out_of_memory")
    run_plan(make())
    assert states(make()) == {"ok": 5, "diverged": 5}
    assert states(make(name="t", count_as_diverged=None)) == {"ok": 5, "failed": 5}


@pytest.mark.parametrize("body", ["sys.exit(3)", fails("error", "", in_training=None)])
def test_a_run_that_failed_before_or_after_training_has_no_outcome(worker: Use, body: str) -> None:
    worker(body)
    run_plan(make(count_as_diverged=["error"]))
    assert states(make(count_as_diverged=["error"])) == {"failed": 10}


def test_retries_come_first(failing: Use) -> None:
    failing("error")
    plan = make(count_as_diverged=["error"], retries={"error": 2})
    run_plan(plan)
    assert begun() == {1: 5, 3: 5}
    assert states(plan) == {"ok": 5, "diverged": 5}
    assert "as the study declares, unless one of its retries (at most 2 after error) succeeded." in methods(Results(plan))


def test_an_outcome_is_reproduced_by_the_same_failure(
    failing: Use, worker: Use, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("attnkit.cli.ablate.RUN", "fake_worker")
    Path("s.yaml").write_text(json.dumps({**STUDY, "seeds": 2, "factors": {"model.stack.position": ["none"]}}))
    again = ["reproduce", "s.yaml", "position=none:1", "--folder", "runs"]
    failing("out_of_memory")
    run_plan(make(seeds=2, count_as_diverged=None))
    assert ablate(again) == 0
    assert "The run failed in training, as the stored one did: out_of_memory: 10 GiB | 10 GiB" in capsys.readouterr().out
    worker("")
    assert ablate(again) == 1
    assert "The stored run failed (out_of_memory: 10 GiB), but this one did not." in capsys.readouterr().out
    failing("error")
    with pytest.raises(ConfigurationError, match="the run failed: 10 GiB"):
        ablate(again)


def test_an_outcome_of_other_code_is_repeated(failing: Use, worker: Use) -> None:
    failing("out_of_memory")
    run_plan(plan := make())
    for run in plan.runs:
        write_json(plan.run_folder(run.key) / PROVENANCE, asdict(made(packages={"torch": "0.1"})))
    assert states(plan) == {"stale": 10}
    worker("")
    run_plan(make())
    assert states(make()) == {"ok": 10}


def test_a_trial_that_fails_as_declared_is_not_chosen(worker: Use) -> None:
    worker(fails("error", 'lr": 0.1}'))
    tune = {"grid": {"model.optimizer.lr": [0.001, 0.1, 0.25]}, "seeds": 2}
    plan = run_plan(make(count_as_diverged=["error"], tune=tune), jobs=2)
    assert {tuned.chosen["model.optimizer.lr"] for tuned in plan.tuned.values()} == {0.25}  # 0.1 would be, with the shortest number
    assert Results(plan).trials is not None


def test_a_file_of_runs_counts_as_the_study_did(failing: Use) -> None:
    failing("out_of_memory")
    run_plan(make())
    results = Results(make())
    Path("runs.jsonl.gz").write_bytes(packed(results.plan, answers_of(results.plan)))
    again = Results(*unpacked("runs.jsonl.gz", Path("there")))
    assert again.sentences() == results.sentences()
    assert again.summary().equals(results.summary())


@pytest.mark.parametrize(
    ("key", "before", "now"),
    [
        ("count_as_diverged", ["out_of_memory"], None),
        ("count_as_diverged", ["out_of_memory"], ["out_of_memory", "error"]),
        ("count_as_diverged", None, ["error"]),
        ("compare", [["position=none", "position=learned"]], None),
        ("compare", None, [["position=none", "position=learned"]]),
    ],
)
def test_what_a_study_declares_cannot_be_changed_or_removed_later(guessed: None, key: str, before: Any, now: Any) -> None:
    def declared(value: Any) -> Plan:
        return make(**{"seeds": 2, "factors": {"model.stack.position": ["none", "learned"]}, key: value})

    declared(before).lock()
    with pytest.raises(ConfigurationError, match=f"has results of another study: {key} changed since"):
        declared(now).refuse_other()


@pytest.mark.parametrize(("before", "now"), [({"error": 1}, {"error": 2}), ({}, {"error": 1}), ({"error": 1}, {})])
def test_retries_of_outcomes_cannot_be_changed_later(guessed: None, before: dict[str, int], now: dict[str, int]) -> None:
    make(count_as_diverged=["error"], retries=before, seeds=2).lock()
    with pytest.raises(ConfigurationError, match="has results of another study: retries changed since"):
        make(count_as_diverged=["error"], retries=now, seeds=2).refuse_other()
    assert make(count_as_diverged=["error"], retries={**before, "killed": 9, "timeout": 2}, seeds=2).refuse_other()


@pytest.mark.parametrize(
    ("before", "changed"),
    [
        (["out_of_memory"], {"metric": "val/token_accuracy", "better": "lower"}),
        (None, {"count_as_diverged": ["out_of_memory"]}),
    ],
)
def test_an_outcome_is_an_answer_to_the_question(failing: Use, before: list[str] | None, changed: dict[str, Any]) -> None:
    """Even if the study, before it was changed, did not count it."""
    failing("out_of_memory")
    run_plan(plan := make(count_as_diverged=before))
    for run in plan.runs:
        if "baseline" in run.variants:
            (plan.run_folder(run.key) / "status.json").unlink()
    with pytest.raises(ConfigurationError, match=f"has results of another study: {next(iter(changed))} changed since"):
        make(**{"count_as_diverged": before, **changed}).refuse_other()
