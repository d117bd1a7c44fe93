"""Tuning: every variant gets the same number of trials, on seeds other than those of the results, which use the best value."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from attnkit.ablation.engine import edges, retry, run_plan
from attnkit.ablation.plan import Plan, stored_plan
from attnkit.ablation.report import markdown
from attnkit.ablation.results import Results
from attnkit.ablation.sections import EVEN, Range
from attnkit.ablation.tuning import proposed
from attnkit.registry import ConfigurationError
from attnkit.worker.answers import Inspection
from attnkit.worker.folder import PROVENANCE, status_of, write_json
from tests.ablation.conftest import made, study

Use = Callable[[str], None]
LR = "model.optimizer.lr"
TUNE: dict[str, Any] = {"grid": {LR: [0.001, 0.1, 0.25]}, "seeds": 2}  # the worker's metric is smaller for the shorter number


def make(**changes: Any) -> Plan:
    return study(**{"seeds": 3, "tune": TUNE} | changes).plan(Path("runs"))


def rates(plan: Plan) -> Counter[float]:
    return Counter(run.job["recipe"]["model"][LR] for run in plan.runs if LR in run.job["recipe"]["model"])


def test_every_variant_gets_equally_many_trials_on_separate_seeds(worker: Use) -> None:
    plan = make()
    assert plan.trials is not None
    assert rates(plan.trials) == {0.001: 6, 0.1: 6, 0.25: 6}
    used = [{run.job["seeds"]["data"] for run in p.runs} for p in (plan, plan.trials)]
    assert not used[0] & used[1]
    assert not plan.tuned


def test_results_use_the_best_value(worker: Use) -> None:
    said: list[str] = []
    plan = run_plan(make(), jobs=2, say=said.append)
    assert said[0] == f"tuning {LR}: 18 trials"
    assert {name: t.chosen[LR] for name, t in plan.tuned.items()} == {"baseline": 0.1, "position=none": 0.1, "position=learned": 0.1}
    assert rates(plan) == {0.1: 9}
    assert Results(plan).complete
    assert json.loads(Path("runs/s/plan.json").read_text())["tuned"]["baseline"]["chosen"] == {LR: 0.1}
    assert not any(line.startswith("warning") for line in said)
    stored = stored_plan(plan.study, Path("runs"))
    assert stored is not None
    assert stored.tuned == plan.tuned
    run_plan(make(), say=said.append)  # this is not a different question
    assert len(Path("ran.txt").read_text().split()) == 27


def test_trials_that_must_be_repeated_do_not_make_it_another_study(guessed: None) -> None:
    def record(plan: Plan, **provenance: Any) -> Plan:
        assert plan.trials is not None
        for run in plan.trials.runs:
            folder = plan.run_folder(run.key)
            write_json(folder / PROVENANCE, asdict(made(**provenance)))
            write_json(folder / "result.json", {"metrics": {"val/loss": 1.0}})
            write_json(folder / "status.json", {"status": "ok", "wall_seconds": 1.0})
        plan.trials.lock()
        return make()

    tuned = record(make())
    assert tuned.tuned
    tuned.lock()
    stale = record(make(), data={"words.tsv": "0" * 16})
    assert not stale.tuned
    assert stale.refuse_other()
    with pytest.raises(ConfigurationError, match="runs/s has results of another study: set changed"):
        make(set={"model.deep": 2}).refuse_other()
    question = Path("runs/s.tuning/study.json")
    write_json(question, json.loads(question.read_text()) | {"alpha": 0.1})
    with pytest.raises(ConfigurationError, match=r"runs/s\.tuning has results of another study: alpha changed"):
        stale.refuse_other()


def test_a_study_with_effects_or_looks_is_tuned(worker: Use) -> None:
    factors = {"model.stack.position": ["none"], "model.stack.norm": ["rms_norm"]}
    plan = make(design="full_factorial", factors=factors, effects=["position"], seeds=None, decide={"max_seeds": 4})
    assert plan.trials is not None
    assert rates(plan.trials) == {0.001: 8, 0.1: 8, 0.25: 8}


def test_a_best_value_at_the_edge_is_reported(worker: Use) -> None:
    said: list[str] = []
    run_plan(make(tune=TUNE | {"grid": {LR: [0.001, 0.01]}}), jobs=2, say=said.append)
    assert "warning: baseline: the best tuned value, lr=0.01, is at the edge of the grid of model.optimizer.lr" in said


def test_a_failed_trial_stops_the_study_until_it_is_retried(worker: Use) -> None:
    worker("if not (folder / 'once').exists(): (folder / 'once').touch(); sys.exit(3)")
    with pytest.raises(ConfigurationError, match="a tuning trial failed: attnkit ablate status shows which, and attnkit ablate retry"):
        run_plan(make(), jobs=4)
    assert retry(make()) == 18
    assert not make().tuned
    run_plan(trials := make().trials or make(), jobs=4)
    assert {status_of(trials.run_folder(r.key))["status"] for r in trials.runs} == {"ok"}
    assert make().tuned


def test_a_diverged_trial_is_not_chosen(worker: Use) -> None:
    ends = "write('result.json', {'metrics': {}}); write('status.json', {'status': 'diverged'}); sys.exit()"
    worker(f"if '0.1}}' in json.dumps(job['recipe']): {ends}")
    plan = run_plan(make(), jobs=2)
    assert [t.chosen for t in plan.tuned.values()] == [{LR: 0.25}] * 3


def test_a_metric_of_tuning_that_reused_trials_have_not_logged_stops_the_study(worker: Use) -> None:
    run_plan(make())
    other = make(name="t", tune={**TUNE, "metric": "val/los", "better": "lower"})
    assert not other.tuned
    with pytest.raises(ConfigurationError, match=r"'val/los' is never logged. Did you mean 'val/loss'"):
        run_plan(other)


def test_a_change_of_the_tuning_is_refused_before_trials_are_run(worker: Use) -> None:
    run_plan(make())
    said: list[str] = []
    with pytest.raises(ConfigurationError, match="results of another study: tune changed since"):
        run_plan(make(tune={**TUNE, "seeds": 3}), say=said.append)
    assert said == []
    assert len(Path("ran.txt").read_text().split()) == 27


def test_no_value_is_called_best_when_all_trials_diverged(guessed: None) -> None:
    plan = make(tune={"search": {LR: {"low": 0.001, "high": 0.1}}, "trials": 3})
    assert plan.trials is not None
    for run in plan.trials.runs:
        write_json(plan.run_folder(run.key) / PROVENANCE, asdict(made()))
        write_json(plan.run_folder(run.key) / "status.json", {"status": "diverged"})
    plan = make(tune={"search": {LR: {"low": 0.001, "high": 0.1}}, "trials": 3})
    assert plan.tuned["baseline"].edges == (LR,), "the checklist must not say that it is inside"
    assert edges(plan)[0] == "warning: baseline: every tuning trial diverged, so lr=0.0505 is just the first value, not the best"


def test_an_edge_is_the_lowest_or_highest_value_regardless_of_order(guessed: None) -> None:
    best = {LR: 0.001, "model.norm": "rms_norm"}
    grid = {LR: [0.01, 0.0001, 0.001], "model.norm": ["layer_norm", "rms_norm"]}
    plan = make(factors={"model.a": [1]}, tune={"grid": grid, "seeds": 2})
    assert plan.trials is not None
    for run in plan.trials.runs:
        model = run.job["recipe"]["model"]
        value = sum(model[key] != wanted for key, wanted in best.items()) + (0.0001 if model.get("model.a") else model[LR] - 0.001)
        value = model[LR] if model.get("model.a") else value
        write_json(plan.run_folder(run.key) / PROVENANCE, asdict(made()))
        write_json(plan.run_folder(run.key) / "result.json", {"metrics": {"val/loss": value}, "curve": []})
        write_json(plan.run_folder(run.key) / "status.json", {"status": "ok"})
    tuned = make(factors={"model.a": [1]}, tune={"grid": grid, "seeds": 2}).tuned
    assert (tuned["baseline"].chosen, tuned["baseline"].edges) == (best, ()), (
        "between the others, though last in the file; names have no order"
    )
    assert (tuned["a=1"].chosen[LR], tuned["a=1"].edges) == (0.0001, (LR,)), "in the middle of the file, but the lowest"


def test_untunable_keys_are_rejected(guessed: None) -> None:
    with pytest.raises(ConfigurationError, match=r"tune: model.stack.position is set by the variant 'position=none'"):
        make(tune=TUNE | {"grid": {"model.stack.position": ["none", "learned"]}})
    own = {"name": "sgd", "lr": 0.5}  # a report would say that sgd(lr=0.5) is worse, but that is not what was trained
    with pytest.raises(ConfigurationError, match=r"tune replaces model.optimizer.lr, which the label of optimizer=sgd\(lr=0.5\) shows"):
        make(factors={"model.optimizer": [own]})
    make(factors={"model.optimizer": {"levels": {"sgd": own}}})
    with pytest.raises(ConfigurationError, match=r"tune: tuning on the test data would make them worthless; add metric: val/"):
        make(metric="test/loss")
    make(metric="test/loss", tune=TUNE | {"metric": "val/loss"})
    with pytest.raises(ConfigurationError, match="tune: val/loss is not the study's metric: add better: lower or higher"):
        make(metric="val/accuracy", better="higher", tune=TUNE | {"metric": "val/loss"})
    other = make(metric="val/accuracy", better="higher", tune=TUNE | {"metric": "val/loss", "better": "lower"}).trials
    assert other is not None
    assert other.study.better == "lower"
    with pytest.raises(ConfigurationError, match="tune: seeds from 1000000 are reserved for tuning"):
        make(seeds=[0, 1_000_001])
    with pytest.raises(ConfigurationError, match=r"tune: unknown key 'gird'. Did you mean 'grid'\?"):
        make(tune={"gird": {LR: [1, 2]}})
    with pytest.raises(ConfigurationError, match="tune: seeds must be at least 2, but is 1"):
        make(tune=TUNE | {"seeds": 1})
    with pytest.raises(ConfigurationError, match=rf"tune: {LR} needs at least two values, all different, but has \[1\]"):
        make(tune=TUNE | {"grid": {LR: [1]}})
    with pytest.raises(ConfigurationError, match="tune: give grid, with the values of at least one recipe key, or search"):
        make(tune=TUNE | {"grid": {}})


def test_tuning_that_changes_the_size_to_which_others_are_matched_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def inspect(recipe: str, compositions: Any, **_: Any) -> list[Inspection]:
        grown = [over.get("model.layers") == 2 for over in compositions]
        found = [{"model": over, "data": {"name": "d"}} for over in compositions]
        return [Inspection(recipe=one, parameters=10, adjusted=1 if more else None) for one, more in zip(found, grown, strict=True)]

    monkeypatch.setattr("attnkit.ablation.planning.inspect", inspect)
    match = {"on": "params", "adjust": "model.width"}
    with pytest.raises(ConfigurationError, match="tune: 'baseline, layers=2' differs in size from 'baseline, layers=1', so match would"):
        make(match=match, tune=TUNE | {"grid": {"model.layers": [1, 2]}})
    make(match=match, tune=TUNE)


def test_several_keys_are_tuned_jointly_over_all_combinations(worker: Use) -> None:
    plan = run_plan(make(tune=TUNE | {"grid": {LR: [0.001, 0.1, 0.25], "model.dropout": [0.25, 0.5]}}), jobs=2)
    assert plan.trials is not None
    assert len(plan.trials.variants) == 3 * 6
    assert plan.tuned["baseline"].chosen == {LR: 0.1, "model.dropout": 0.5}
    assert plan.tuned["baseline"].edges == ("model.dropout",)
    assert plan.runs[0].job["recipe"]["model"] == {LR: 0.1, "model.dropout": 0.5}


def test_a_search_tries_the_same_points_of_its_ranges_for_every_variant(worker: Use) -> None:
    search = {LR: {"low": 0.001, "high": 0.1, "log": True}, "model.stack.num_layers": {"low": 1, "high": 4}}
    plan = run_plan(make(tune={"search": search, "trials": 8}), jobs=2)
    assert plan.trials is not None
    points = [[tuple(values.values()) for values, _ in found.means] for found in plan.tuned.values()]
    assert points[0] == points[1] == points[2]
    assert len(set(points[0])) == 8
    rates, layers = zip(*points[0], strict=True)
    assert set(layers) == {1, 2, 3, 4}, "evenly over the integers"
    assert [sum(low <= rate < high for rate in rates) for low, high in ((0.001, 0.01), (0.01, 0.1))] == [4, 4], "evenly on the log scale"
    best = min(plan.tuned["baseline"].means, key=lambda pair: pair[1] or 0)[0]
    assert plan.tuned["baseline"].chosen == best
    text = markdown(Results(plan))
    assert (
        "over 8 combinations with 2 other seeds each, the same for every variant: model.optimizer.lr in [0.001, 0.1] on a log scale" in text
    )
    assert "| variant | chosen | lowest | median | highest | diverged |" in text
    stored = stored_plan(plan.study, Path("runs"))
    assert stored is not None
    assert stored.tuned == plan.tuned


def test_points_stay_inside_their_range() -> None:
    assert Range(low=0.99, high=0.99999).at(0.999) == 0.99999, "not 1.0"


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"search": {LR: {"low": 0.1, "high": 0.01}}, "trials": 4}, "low below high"),
        ({"search": {LR: {"low": 0, "high": 1, "log": True}}, "trials": 4}, "low above 0 with log"),
        ({"search": {LR: {"low": 0, "high": 1}}}, "search needs trials, at least 2"),
        ({"search": {LR: {"low": 0, "high": 1}}, "trials": 4, "grid": {LR: [1, 2]}}, "not both"),
        ({"grid": {LR: [1, 2]}, "trials": 4}, "but grid takes none"),
    ],
)
def test_an_invalid_search_is_rejected(guessed: None, tune: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(tune=tune)


def test_a_longer_search_learns_from_each_variants_trials(worker: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first points are the same for all; each later point depends only on the earlier results, whoever asks, and whenever."""
    tune = {"search": {LR: {"low": 0.001, "high": 0.1, "log": True}}, "trials": EVEN + 2}
    said: list[str] = []
    plan = run_plan(make(factors={"model.stack.position": ["none"]}, tune=tune), jobs=2, say=said.append)
    assert plan.trials is not None
    assert [line for line in said if line.startswith("tuning")] == [f"tuning {LR}: {2 * 2 * n} trials" for n in (10, 11, 12)]
    mine, theirs = ([dict(point) for point, _ in found.means] for found in plan.tuned.values())
    assert mine[:EVEN] == theirs[:EVEN]
    search = {LR: Range(low=0.001, high=0.1, log=True)}
    for found in plan.tuned.values():
        for n in (10, 11):
            assert found.means[n][0] == proposed(search, found.means[:n], better="lower"), "of what was found, and nothing else"  # type: ignore[arg-type]
    assert len(mine) == len(theirs) == 12, "equal budgets"
    again = run_plan(make(factors={"model.stack.position": ["none"]}, tune=tune), say=said.append)
    assert again.tuned == plan.tuned, "points that were found do not make it another question"
    assert len(Path("ran.txt").read_text().split()) == 2 * 2 * 12 + 6
    text = " ".join(markdown(Results(plan)).split())
    assert "over 12 combinations with 2 other seeds each, equally many for every variant" in text
    assert "The first 10 are the same for all; each later one is proposed by Optuna's tree-structured Parzen estimator" in text
    monkeypatch.setattr("attnkit.ablation.tuning.find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError, match=r"a search of more than 10 trials needs the package 'optuna': pip install 'attnkit\[tune\]'"
    ):
        make(tune=tune)
    make(tune=tune | {"trials": EVEN})


def test_proposals_stay_in_range_and_avoid_diverged_points() -> None:
    search = {LR: Range(low=0.001, high=0.1, log=True), "n": Range(low=1, high=4)}
    found: list[tuple[dict[str, Any], float | None]] = [
        ({LR: 0.001 * n, "n": 1 + n % 4}, None if n > 20 else float(n)) for n in range(1, 100, 4)
    ]
    for better, ends in (("lower", (0.001, 0.02)), ("higher", (0.001, 0.03))):
        point = proposed(search, found, better=better)
        assert ends[0] <= point[LR] <= ends[1]
        assert point["n"] in (1, 2, 3, 4)
        assert point[LR] == float(f"{point[LR]:.4g}")
