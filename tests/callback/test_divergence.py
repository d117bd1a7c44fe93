"""A loss that stays far above its best stops the run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from attnkit.callback import Divergence, UnhealthyError
from attnkit.registry import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")


class Losses(Callback):
    """Logs losses of a script."""

    def __init__(self, *losses: float) -> None:
        self.losses = losses

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.log("scripted", torch.tensor(float(self.losses[batch_idx])))


@pytest.mark.parametrize(("losses", "step"), [((4, 2, 5, 5, 3, 5, 5, 5, 1), 8), ((4, 2, 5, 4.1, 4, 5, 5, 2), None)])
def test_a_run_stops_after_consecutive_bad_checks(make_batch: Any, make_task: Any, fit: Any, losses: Any, step: int | None) -> None:
    callbacks = [Losses(*losses), Divergence(monitor="scripted", patience=3)]
    batches = [make_batch(["ab"])] * len(losses)
    if step is None:
        fit(make_task(), batches, callbacks=callbacks, log_every_n_steps=1)
    else:
        with pytest.raises(UnhealthyError, match=f"after {step} steps scripted is 5; it was above 2 times its best"):
            fit(make_task(), batches, callbacks=callbacks, log_every_n_steps=1)


def test_an_unknown_monitor_is_rejected_with_a_suggestion(make_batch: Any, make_task: Any, fit: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'train/los', which is not logged. Did you mean 'train/loss'"):
        fit(make_task(), [make_batch(["ab"])] * 2, callbacks=[Divergence(monitor="train/los")], log_every_n_steps=1)


def test_a_resumed_run_checks_from_its_next_step(make_batch: Any, make_task: Any, fit: Any, tmp_path: Path) -> None:
    batches, arguments = [make_batch(["ab"])] * 2, {"log_every_n_steps": 2}
    fit(make_task(), batches, callbacks=[Divergence()], **arguments).save_checkpoint(tmp_path / "a.ckpt")
    resumed = fit(make_task(), batches, callbacks=[Divergence()], ckpt_path=tmp_path / "a.ckpt", max_epochs=2, **arguments)
    assert resumed.global_step == 4


def test_a_run_that_never_logs_is_refused(make_batch: Any, make_task: Any, fit: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Divergence checks whenever the run logs, but trainer\.log_every_n_steps is 0"):
        fit(make_task(), [make_batch(["ab"])], callbacks=[Divergence()], log_every_n_steps=0)


@pytest.mark.parametrize("arguments", [{"factor": 1.0}, {"patience": 0}])
def test_numbers_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(arguments))):
        Divergence(**arguments)
