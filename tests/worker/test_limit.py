"""Budgets: a run ends at the first step at which its budget is used, also if it was cut short on the way."""

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from attnkit.registry import ConfigurationError
from attnkit.worker.budget import Budget
from attnkit.worker.folder import read_json, status_of, write_json
from attnkit.worker.inspection import Inspector
from attnkit.worker.recorder import Recorder
from attnkit.worker.run import main
from tests.ablation.conftest import RECIPE, SEEDS, study

pytestmark = pytest.mark.usefixtures("small_recipe")


def begin(name: str, on: str, limit: float, **trainer: Any) -> Path:
    folder = Path(name).absolute()
    budget = Budget(on=on, limit=limit)  # type: ignore[arg-type]
    layers = [{"trainer": {key.removeprefix("trainer."): value}} for key, value in budget.overrides.items()]
    recipe, _ = Inspector("tiny.yaml", match=None, baseline=[]).completed([*layers, {"trainer": trainer}])
    recipe["data"]["seed"] = 2
    write_json(folder / "job.json", {"recipe": recipe, "seeds": SEEDS, "test": False, "budget": {"on": on, "limit": limit}})
    return folder


def run(folder: Path) -> dict[str, Any]:
    main(folder)
    return dict(read_json(folder / "result.json") or {})


def test_a_run_ends_at_the_first_step_that_exhausts_its_budget(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Random(seed).randint(3, 9)
    whole = run(begin("steps", "steps", steps))
    assert whole["batches"] == steps == whole["curve"][-1]["step"]
    assert whole["budget"] == {"on": "steps", "limit": steps, "spent": steps}
    some = run(begin("tokens", "tokens", whole["tokens"], max_epochs=9))
    assert (some["batches"], some["batch_hash"]) == (steps, whole["batch_hash"])
    assert run(begin("fewer", "tokens", whole["tokens"] - 1, max_epochs=9))["batches"] == steps
    assert run(begin("more", "tokens", whole["tokens"] + 1, max_epochs=9))["batches"] == steps + 1
    spent = [run(begin(f"flops{limit}", "flops", limit, max_epochs=9))["budget"]["spent"] for limit in (1, 10**6)]
    assert 1 < spent[0] < 10**6 <= spent[1] < 10**6 + 4 * spent[0]


def test_a_budget_of_steps_sets_the_schedule_length(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = Recorder.on_train_batch_end

    def look(self: Recorder, trainer: Any, *rest: Any) -> None:
        seen.append(trainer.optimizers[0].param_groups[0]["lr"])
        original(self, trainer, *rest)

    monkeypatch.setattr(Recorder, "on_train_batch_end", look)
    Path("tiny.yaml").write_text(yaml.safe_dump(RECIPE | {"model": RECIPE["model"] | {"schedule": {"name": "linear", "warmup_steps": 0}}}))
    run(begin("linear", "steps", 5))
    rate = RECIPE["model"]["optimizer"]["lr"]
    assert seen == pytest.approx([rate * (1 - step / 5) for step in range(1, 6)])


@pytest.mark.parametrize("on", ["steps", "tokens", "flops"])
def test_an_interrupted_run_uses_the_same_budget(on: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = {"steps": 9, "tokens": 500, "flops": 3 * 10**6}[on]
    whole = run(begin("whole", on, limit, val_check_interval=2, **({} if on == "steps" else {"max_epochs": 20})))
    assert whole["batches"] > 4
    at = Random(seed).randint(3, whole["batches"]) if on != "tokens" else 7  # the last batch of an epoch, a checkpoint before it
    original = Recorder.on_train_batch_end

    class CutError(Exception):
        pass

    def cut(self: Recorder, *rest: Any) -> None:
        original(self, *rest)
        if self.batches == at:
            raise CutError

    folder = begin("cut", on, limit, val_check_interval=2, **({} if on == "steps" else {"max_epochs": 20}))
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "on_train_batch_end", cut)
        run(folder)
    assert status_of(folder)["kind"] == "error"
    (folder / "status.json").unlink()
    again = run(folder)
    for key in ("metrics", "batches", "batch_hash", "tokens", "budget"):
        assert again[key] == whole[key]


def test_a_finished_run_without_a_result_does_not_train_again() -> None:
    whole = run(folder := begin("whole", "tokens", 200, max_epochs=9))
    (folder / "status.json").unlink()
    (folder / "result.json").unlink()
    again = run(folder)
    assert (again["batches"], again["metrics"]) == (whole["batches"], whole["metrics"])


def test_a_budget_of_seconds_ends_a_run() -> None:
    assert run(begin("seconds", "seconds", 1e-3, max_epochs=9))["batches"] == 1


def test_a_run_that_ends_before_its_budget_fails() -> None:
    assert not run(folder := begin("short", "tokens", 10**9, max_epochs=1))
    assert "before its budget of 1e+09: increase trainer.max_epochs" in status_of(folder)["message"]


def test_a_budget_must_be_exactly_one_limit() -> None:
    with pytest.raises(ConfigurationError, match=r"budget: unknown 'token'. Did you mean 'tokens'\?"):
        study(budget={"token": 3})
    with pytest.raises(ConfigurationError, match="budget must be exactly one of steps, tokens, flops, seconds"):
        study(budget={"tokens": 3, "steps": 2})
    with pytest.raises(ConfigurationError, match="budget: steps must be a number of at least 1, but is -3"):
        study(budget={"steps": -3})
    for wrong in ({"steps": 0.5}, {"tokens": math.nan}, {"seconds": math.inf}, {"flops": 0}, {"seconds": 0}):
        with pytest.raises(ConfigurationError, match=r"budget: .* must be a number"):
            study(budget=wrong)
    assert study(budget={"seconds": 0.5}).budget == Budget(on="seconds", limit=0.5)
