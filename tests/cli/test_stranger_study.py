"""A stranger's classes in studies: planned, trained, resumed and reported."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnkit.ablation import Study
from attnkit.ablation.fairness import checklist
from attnkit.ablation.results import Results
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import read_json, status_of, write_json
from attnkit.worker.inspection import Inspector, layered
from attnkit.worker.recorder import Recorder
from attnkit.worker.run import main
from tests.ablation.conftest import RECIPE as TASK
from tests.ablation.conftest import SEEDS, write_recipe

Command = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("repository")


OWN: dict[str, Any] = {
    "model": {"class_path": "stranger_model.Noisy", "init_args": {"d_model": 8}},
    "data": {"class_path": "stranger_model.Shuffled", "init_args": {"size": 12}},
    "trainer": {"accelerator": "cpu"},
    "fit": {"trainer": {"max_epochs": 2}},
}
ALONE: dict[str, Any] = {"model": "stranger_model.Alone", "trainer": {"accelerator": "cpu", "max_epochs": 1}}


def study(recipe: Any, **settings: Any) -> Study:
    """Return a study of two seeds, whose files are in the current folder."""
    Path("own.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    Path("s.yaml").write_text(yaml.safe_dump({"recipe": "own.yaml", "seeds": 2, **settings}), encoding="utf-8")
    return Study.from_yaml("s.yaml")


def answer(recipe: Any, overrides: dict[str, Any], *, match: Any = None) -> dict[str, Any]:
    """Return the inspection of a composition, made in this process."""
    Path("own.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return Inspector("own.yaml", match=match, baseline=[]).answer(layered(overrides))


def trained_as(name: str, overrides: dict[str, Any], *, seeds: dict[str, int] = SEEDS, test: bool = False) -> dict[str, Any]:
    """Train the recipe `OWN` in this process as a run of a study, and return its result."""
    folder = Path(name).absolute()
    write_json(folder / "job.json", {"recipe": answer(OWN, overrides)["recipe"], "seeds": seeds, "test": test})
    main(folder)
    assert status_of(folder)["status"] == "ok", status_of(folder)
    return dict(read_json(folder / "result.json"))


def results_of(asked: Study) -> Results:
    """Carry out the runs of a study in this process."""
    plan = asked.plan()
    plan.lock()
    for run in plan.runs:
        folder = plan.run_folder(run.key)
        write_json(folder / "job.json", run.job)
        assert main(folder.absolute()) == 0, status_of(folder)
    return Results(plan)


def test_a_custom_attention_is_ablated_by_name_and_by_class_path(repository: Path, attnkit: Command) -> None:
    write_recipe(repository)
    path = "stranger_attention.Manhattan"
    levels = ["manhattan", path, {"class_path": path, "init_args": {"width": 2.0}}]
    recipe = {**TASK, "imports": ["stranger_attention"]}
    asked = study(recipe, factors={"model.stack.attention": levels[2:]}, set={"trainer.max_epochs": 1})
    planned = study(recipe, factors={"model.stack.attention": levels}).plan()
    by_name, by_path = (planned.inspections[f"attention={level}"].recipe for level in levels[:2])
    assert by_name == by_path, "a registered name and its class path are one composition"
    assert len(planned.runs) == 3 * len(planned.study.seeds)
    assert [v.name for v in planned.variants[1:]] == ["attention=manhattan", f"attention={path}", f"attention={path}(width=2.0)"]
    last = planned.inspections[f"attention={path}(width=2.0)"]
    assert last.recipe is not None
    assert last.recipe["model"]["stack"]["attention"] == {"name": "manhattan", "width": 2.0}
    assert not last.limits
    asked = study(recipe, factors={"model.stack.attention": levels[2:]}, set={"trainer.max_epochs": 1})
    results = results_of(asked)
    assert results.complete
    assert not results.unpaired()
    assert attnkit("ablate", "report", "s.yaml").status == 0


@pytest.mark.slow
def test_custom_classes_are_ablated_from_plan_to_report(attnkit: Command) -> None:
    study(OWN, factors={"model.d_model": [16]}, metric="test/loss")
    planned = attnkit("ablate", "plan", "s.yaml")
    assert planned.status == 0, planned.err
    assert "  baseline: 1,018 parameters, about" in planned.out
    assert "note: stranger_model.Noisy is not a task of attnkit: its FLOPs are unknown" in planned.out
    assert "note: stranger_model.Shuffled takes no seed" in planned.out
    ran = attnkit("ablate", "run", "s.yaml", "--jobs", 2)
    assert ran.status == 0, ran.err + ran.out
    assert "d_model=16 " in ran.out
    folder = Path("runs/ablations/s")
    for name in ("report.md", "report.html"):
        text = (folder / name).read_text(encoding="utf-8")
        assert "is not a task of attnkit: its FLOPs are unknown" in text
    assert "[x] all variants saw the same batches in the same order" in (folder / "report.md").read_text(encoding="utf-8")
    key = next(Path("runs/ablations/runs").iterdir()).name
    assert "batches: the same" in attnkit("ablate", "reproduce", "s.yaml", key).out


def test_each_seed_kind_takes_effect_for_custom_classes() -> None:
    one = trained_as("one", {})
    assert trained_as("again", {})["metrics"] == one["metrics"]
    assert one["batches"] == 6, "the section fit of the recipe says two epochs"
    wide = trained_as("wide", {"model.init_args.d_model": 16})
    assert wide["parameters"] > one["parameters"]
    assert wide["batch_hash"] == one["batch_hash"], "the module drew more numbers, and the order of the data followed"
    assert trained_as("data", {}, seeds=SEEDS | {"data": 9})["batch_hash"] != one["batch_hash"]
    for kind in ("initialisation", "dropout"):
        other = trained_as(kind, {}, seeds=SEEDS | {kind: 9})
        assert other["batch_hash"] == one["batch_hash"]
        assert other["metrics"]["val/loss"] != one["metrics"]["val/loss"]


def test_a_run_of_custom_classes_cut_between_epochs_resumes_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained_as("whole", {})
    end = Recorder.on_train_batch_end

    def cut(self: Recorder, trainer: Any, *others: Any) -> None:
        end(self, trainer, *others)
        if trainer.current_epoch == 1:
            raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "on_train_batch_end", cut)
        with pytest.raises(AssertionError):
            trained_as("cut", {})
    Path("cut/status.json").unlink()
    assert main(Path("cut").absolute()) == 0
    resumed = read_json(Path("cut/result.json"))
    assert [resumed[key] for key in ("metrics", "batches", "batch_hash")] == [whole[key] for key in ("metrics", "batches", "batch_hash")]


def test_custom_modules_are_counted_and_unknown_counts_are_reported() -> None:
    assert answer(ALONE, {})["parameters"] == 4
    assert answer(ALONE, {"model.from_values": True})["parameters"] == 4, "a constructor that needs values cannot be run on meta"
    lazy = answer(ALONE, {"model.lazy": True})
    assert lazy["parameters"] is None
    assert "the parameters of stranger_model.Alone are counted only in its runs: it has lazy modules" in lazy["limits"]
    assert not lazy["counts_flops"]
    assert "stranger_model.Noisy cannot be built: AssertionError: too wide" in answer(OWN, {"model.d_model": 64})["error"]


def test_custom_modules_can_only_be_matched_by_parameters() -> None:
    match = {"on": "params", "adjust": "model.width", "tolerance": 0.5}
    assert answer({**ALONE, "model": {"name": ALONE["model"], "width": 3}}, {"model.width": 1}, match=match)["adjusted"] == 3
    with pytest.raises(
        ConfigurationError, match=r"match: the FLOPs of stranger_model\.Alone, which is not an attnkit task, .* match on params"
    ):
        answer(ALONE, {}, match=match | {"on": "flops"})
    with pytest.raises(
        ConfigurationError, match=r"match: the number of parameters .* unknown before training \(it has lazy modules\); remove match"
    ):
        answer({**ALONE, "model": {"name": ALONE["model"], "lazy": True}}, {}, match=match)


def test_a_test_metric_without_a_best_checkpoint_is_rejected_before_training() -> None:
    with pytest.raises(ConfigurationError, match=r"metric 'test/loss': .* needs the best checkpoint, .*'baseline' keep none.*`monitor`"):
        study(ALONE, factors={"model.width": [2]}, metric="test/loss").plan()
    saving = {**ALONE, "trainer": {**ALONE["trainer"], "callbacks": ["lightning.pytorch.callbacks.ModelCheckpoint"]}}
    assert study(saving, factors={"model.width": [2]}, metric="test/loss").plan().runs
    assert study(OWN, factors={"model.d_model": [16]}, metric="test/loss").plan().runs


def test_a_flops_budget_is_rejected_for_custom_modules() -> None:
    with pytest.raises(ConfigurationError, match=r"budget: the FLOPs of 'baseline' cannot be counted, .*: use steps, tokens or seconds"):
        study(ALONE, factors={"model.width": [2]}, budget={"flops": 100}).plan()
    with pytest.raises(AssertionError, match=r"budget: batches have no tokens \(nonzero int64 values\): use steps or seconds"):
        results_of(study(ALONE, factors={"model.width": [2]}, budget={"tokens": 100}, metric="loss"))


def test_a_module_with_its_own_dataloaders_is_reported_as_trained() -> None:
    results = results_of(study(ALONE, factors={"model.late": [True]}, metric="loss"))
    assert results.complete
    assert [results.parameters(name) for name in ("baseline", "late=true")] == [4, 8]
    found = {text: holds for holds, text in checklist(results)}
    assert found["the plan and the training differ in the number of parameters of late=true"] is False
