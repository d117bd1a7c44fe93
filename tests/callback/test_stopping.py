import os
import signal

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from torch.utils.data import DataLoader

from attnkit.callback.stopping import Stopped, stop_outlasting_errors, stop_signals


class StopsAtItsStart(DataLoader[torch.Tensor]):
    def __iter__(self) -> None:  # type: ignore[override]
        raise Stopped(signal.SIGTERM)


@pytest.fixture
def trainer() -> Trainer:
    return Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
    )


@pytest.fixture
def model() -> LightningModule:
    return BoringModel()


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*", r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning")
def test_a_stop_while_a_data_loader_starts_survives_lightnings_teardown(trainer: Trainer, model: LightningModule) -> None:
    with pytest.raises(RuntimeError, match="combined_loader"):  # once this fails, `stop_outlasting_errors` can go
        trainer.fit(model, StopsAtItsStart(torch.ones(2, 32)))
    with pytest.raises(Stopped, match="SIGTERM"), stop_outlasting_errors():
        trainer.fit(model, StopsAtItsStart(torch.ones(2, 32)))


def fail_after_an_error() -> None:
    try:
        raise KeyError
    finally:
        _ = 1 / 0


def test_other_errors_propagate() -> None:
    with pytest.raises(ZeroDivisionError), stop_outlasting_errors():
        fail_after_an_error()


def test_sigusr1_stops_a_job_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    with stop_signals.taken():
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(Stopped, match="SIGUSR1"), stop_signals.taken():
        os.kill(os.getpid(), signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_sigusr1_keeps_the_handler_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        with stop_signals.taken():
            os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert received == [signal.SIGUSR1] * 2
