"""What Lightning says is shown only where it is of use."""

import logging

import pytest
import torch
from lightning.fabric.accelerators import cuda

from attnkit.train.messages import quiet

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
