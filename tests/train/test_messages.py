"""What Lightning says is shown only where it is of use."""

import logging

import pytest
import torch
from lightning.fabric.accelerators import cuda

from attnkit.train.messages import one_message, quiet

LOGGER = logging.getLogger("lightning.pytorch.utilities.rank_zero")


def test_lightning_hints_no_recipe_can_follow_are_suppressed(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOGGER, "filters", [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    monkeypatch.setattr(cuda, "_is_ampere_or_later", lambda device: True)
    hint = cuda._check_cuda_matmul_precision.__wrapped__
    with caplog.at_level(logging.INFO, LOGGER.name):
        hint(torch.device("cuda"))
        assert "torch.set_float32_matmul_precision" in caplog.text
        caplog.clear()
        with quiet():
            hint(torch.device("cuda"))
            LOGGER.info("Restored all states")
    assert caplog.messages == ["Restored all states"]


@pytest.mark.parametrize(
    "code", ["raise RuntimeError('DataLoader worker (pid 7) is killed by signal: Killed. ')", "raise ConnectionResetError(104, 'Killed')"]
)
def test_the_death_of_a_data_worker_gets_one_message(code: str) -> None:
    with pytest.raises(ChildProcessError, match=r"Killed\), most often because memory ran out: lower data.num_workers"), one_message():
        exec(code, {"__name__": "torch.multiprocessing.reductions"})
    with pytest.raises(ConnectionResetError), one_message():
        raise ConnectionResetError
