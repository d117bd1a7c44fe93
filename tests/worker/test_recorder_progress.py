"""How far a run has come: its file is there while it trains, and says what the record of the training says."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attnkit.ablation.discard import forget
from attnkit.worker.answers import Underway
from attnkit.worker.folder import UNDERWAY, read_record
from attnkit.worker.recorder import Recorder, Reporter
from tests.ablation.conftest import SEEDS


def trainer(**settings: Any) -> Any:
    return SimpleNamespace(
        **{"sanity_checking": False, "is_global_zero": True, "estimated_stepping_batches": 100, "global_step": 3} | settings
    )


def written(folder: Path) -> Underway | None:
    return read_record(Underway, folder / UNDERWAY)


def test_each_validation_is_written_with_the_curve_so_far(tmp_path: Path) -> None:
    recorder, model = Recorder(SEEDS), SimpleNamespace()
    recorder.curve = [{"step": 3, "val/loss": math.nan, "val/accuracy": 0.5}]
    reporter = Reporter(tmp_path, recorder)
    reporter.on_validation_end(trainer(sanity_checking=True), model)  # type: ignore[arg-type]
    reporter.on_validation_end(trainer(is_global_zero=False), model)  # type: ignore[arg-type]
    assert written(tmp_path) is None, "the first rank writes, and of the training alone"
    reporter.on_validation_end(trainer(), model)  # type: ignore[arg-type]
    assert written(tmp_path) == Underway(step=3, steps=100, curve=({"step": 3, "val/loss": None, "val/accuracy": 0.5},))
    reporter.on_validation_end(trainer(estimated_stepping_batches=math.inf), model)  # type: ignore[arg-type]
    assert written(tmp_path) == Underway(step=3, steps=None, curve=({"step": 3, "val/loss": None, "val/accuracy": 0.5},))


def test_steps_are_written_only_every_few_seconds(tmp_path: Path) -> None:
    reporter, model = Reporter(tmp_path, Recorder(SEEDS)), SimpleNamespace()
    for step in (1, 2, 3):
        reporter.on_train_batch_end(trainer(global_step=step), model, None, None, 0)  # type: ignore[arg-type]
    assert written(tmp_path) == Underway(step=1, steps=100)


def test_a_restarted_run_has_no_progress(tmp_path: Path) -> None:
    (tmp_path / UNDERWAY).write_text("{}")
    forget(tmp_path)
    assert not (tmp_path / UNDERWAY).exists()
