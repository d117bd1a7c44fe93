"""Early stopping in a run that is resumed."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import EarlyStopping

from attnkit.train.early_stopping import EarlyStops
from tests.task.conftest import fit, make_batch, make_task, one_thread, rng, words

__all__ = ["fit", "make_batch", "make_task", "one_thread", "rng", "words"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory .* exists and is not empty:UserWarning"),
]


@pytest.mark.parametrize(
    ("patience", "min_epochs", "ends", "epochs"),
    [(1, None, True, 2), (1, 4, True, 4), (3, None, True, 4), (1, None, False, 3)],
)
def test_a_stopped_run_is_complete_unless_its_patience_is_raised(
    make_batch: Any, make_task: Any, fit: Any, tmp_path: Path, patience: int, min_epochs: int | None, ends: bool, epochs: int
) -> None:
    task, batches = make_task(optimizer={"name": "sgd", "lr": 0.0}), [make_batch(["ab"])]

    def run(patience: int, **options: Any) -> Any:
        callbacks = [EarlyStopping("val/loss", patience=patience), EarlyStops(ends=ends)]
        return fit(task, batches, val=batches, callbacks=callbacks, max_epochs=9, **options)

    first = run(1)
    assert first.current_epoch == 2
    first.save_checkpoint(tmp_path / "a.ckpt")
    assert run(patience, min_epochs=min_epochs, ckpt_path=tmp_path / "a.ckpt").current_epoch == epochs


def test_the_command_resumes_no_stopped_run(attnkit: Any, tiny: str) -> None:
    stop = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/loss", "--trainer.callbacks.stopping_threshold=99"]
    command = ["fit", "--config", tiny, "--trainer.max_epochs=9", *stop]
    assert "Step 1:" in attnkit(*command).out
    again = attnkit(*command, "--resume")
    assert again.status == 0
    assert "note: EarlyStopping has ended this run; to train it further, raise its patience, or remove it" in again.err
    assert "Step" not in again.out


def test_a_continued_run_is_not_stopped_by_the_reason_of_before(make_batch: Any, make_task: Any, fit: Any, tmp_path: Path) -> None:
    task, batches, path = make_task(optimizer={"name": "sgd", "lr": 0.0}), [make_batch(["ab"])], tmp_path / "a.ckpt"

    def run(patience: int, *, epochs: int, ends: bool = True, **options: Any) -> Any:
        callbacks = [EarlyStopping("val/loss", patience=patience), EarlyStops(ends=ends)]
        trainer = fit(task, batches, val=batches, callbacks=callbacks, max_epochs=epochs, **options)
        trainer.save_checkpoint(path)
        return trainer.current_epoch

    assert run(1, epochs=9) == 2
    assert run(4, epochs=3, ckpt_path=path) == 3  # its patience is raised, and it is interrupted
    assert run(4, epochs=4, ckpt_path=path) == 4  # the same recipe again
    assert run(4, epochs=9, ckpt_path=path) == 5
