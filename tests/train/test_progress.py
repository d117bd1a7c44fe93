"""The progress bar of `fit` updates once a second, and at the last batch; one that the user configures is left alone."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar

from attnkit.train import output
from attnkit.train.output import Throttled


class Counting(ProgressBar):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append(batch_idx)


def trainer_at(step: int, **state: bool) -> Any:
    return SimpleNamespace(**{"is_last_batch": False, "should_stop": False, "global_step": step, "max_steps": 100, **state})


def test_updates_respect_the_interval_and_the_last_is_always_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    now, bar = [50.0], Counting()
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    update = Throttled(bar)
    for batch in range(30):
        update(trainer_at(batch), None, None, None, batch)
        now[0] += output.INTERVAL / 4
    assert bar.batches == [*range(0, 30, 4)]
    for state in ({"is_last_batch": True}, {"should_stop": True}):
        update(trainer_at(30, **state), None, None, None, 30)
    update(trainer_at(100), None, None, None, 99)
    assert bar.batches[-3:] == [30, 30, 99]


def test_a_throttled_bar_can_be_sent_to_another_process() -> None:
    bar = TQDMProgressBar()
    bar.on_train_batch_end = Throttled(bar)  # type: ignore[assignment, method-assign]
    copy = pickle.loads(pickle.dumps(bar))
    assert isinstance(copy.on_train_batch_end, Throttled)
    assert copy.on_train_batch_end.bar is copy


@pytest.mark.parametrize(
    ("flags", "is_seldom"),
    [
        (["--trainer.enable_progress_bar", "true"], [True]),
        (["--trainer.enable_progress_bar", "true", "--trainer.callbacks+=lightning.pytorch.callbacks.TQDMProgressBar"], [False]),
        (["--trainer.enable_progress_bar", "true", "--trainer.callbacks+=lightning.pytorch.callbacks.RichProgressBar"], [False]),
        (["--trainer.enable_progress_bar", "false"], []),
    ],
)
def test_only_lightnings_own_bar_is_throttled(
    flags: list[str], is_seldom: list[bool], attnkit: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[bool]] = []
    fit = Trainer.fit

    def look(trainer: Trainer, *arguments: Any, **options: Any) -> None:
        bars = [callback for callback in trainer.callbacks if isinstance(callback, ProgressBar)]  # type: ignore[attr-defined]
        seen.append([isinstance(bar.on_train_batch_end, Throttled) for bar in bars])
        fit(trainer, *arguments, **options)

    monkeypatch.setattr(Trainer, "fit", look)
    outcome = attnkit("fit", "--config", tiny, "--trainer.max_steps", 2, "--trainer.limit_val_batches", 0, *flags)
    assert outcome.status == 0, outcome.err
    assert seen[0] == is_seldom
