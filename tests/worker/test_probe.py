"""The probe of a study's plan: a few steps that say how many there are and what they take."""

import json
from pathlib import Path
from typing import Any

import pytest

from attnkit.registry import ConfigurationError
from attnkit.worker.folder import write_json
from attnkit.worker.inspection import Inspector
from attnkit.worker.probe import main, probe
from tests.ablation.conftest import SEEDS

pytestmark = pytest.mark.usefixtures("small_recipe")


def job(trainer: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Return a job as a plan has them."""
    recipe, _ = Inspector("tiny.yaml", match=None, baseline=[]).completed([{"trainer": trainer}])
    return {"recipe": recipe, "seeds": SEEDS, "test": False, **others}


def test_the_probe_reports_steps_validations_and_times() -> None:
    found = probe(job({"max_epochs": 30, "val_check_interval": 2}, test=True), startup=5.0)
    assert found.steps == 30 * 7
    assert found.validations == 30 * 3 + 1
    assert found.training == pytest.approx(found.steps * found.step)
    assert found.startup > 5.0
    assert min(found.step, found.validation) > 0
    assert found.flops_per_token
    assert "val/loss" in found.logged
    assert {path.name for path in Path().iterdir()} == {"tiny.yaml", "words.tsv"}


@pytest.mark.parametrize(
    ("trainer", "budget", "steps", "validations"),
    [
        ({"max_epochs": 1}, None, 7, 1),  # fewer than a probe would make
        ({"max_epochs": -1, "max_steps": 90, "check_val_every_n_epoch": None, "val_check_interval": 20}, None, 90, 5),
        ({"max_epochs": 100, "accumulate_grad_batches": 2, "check_val_every_n_epoch": 5}, None, 400, 20),
        ({"max_epochs": 100}, {"on": "seconds", "limit": 1e9}, 700, 100),
    ],
)
def test_the_probe_counts_steps_and_validations(trainer: dict[str, Any], budget: Any, steps: int, validations: int) -> None:
    found = probe(job(trainer, **({"budget": budget} if budget else {})), startup=0.0)
    assert (found.steps, found.validations) == (steps, validations)


def test_a_token_budget_yields_the_steps_of_a_real_run() -> None:
    made = probe(job({"max_epochs": 100}, budget={"on": "tokens", "limit": 10_000}), startup=0.0)
    assert made.steps == pytest.approx(10_000 * 7 / (32 * 11), rel=0.2)  # 32 pairs of 4 and 7 tokens in 7 batches


def test_the_probe_writes_no_logs() -> None:
    logger = {"class_path": "CSVLogger", "init_args": {"save_dir": "logs"}}
    assert probe(job({"logger": logger, "log_every_n_steps": 1}), startup=0.0).steps > 0
    assert not Path("logs").exists()


def test_jobs_that_cannot_be_timed_give_the_reason() -> None:
    with pytest.raises(ConfigurationError, match="2 processes cannot be timed"):
        probe(job({"devices": 2}), startup=0.0)
    with pytest.raises(ConfigurationError, match="the length of a run is unknown"):
        probe(job({"max_epochs": -1}), startup=0.0)


def test_the_probe_continues_after_a_failed_job(capsys: pytest.CaptureFixture[str]) -> None:
    good = job({"max_epochs": 2})
    missing = {**good, "recipe": {**good["recipe"], "data": {**good["recipe"]["data"], "corpus": "missing.tsv"}}}
    write_json(Path("job.json"), {"began": 0.0, "seconds": 60, "jobs": [missing, good]})
    assert main(Path()) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert "missing.tsv" in first["error"]
    assert second["steps"] == 14
