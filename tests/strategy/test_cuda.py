"""Tests that need a GPU: half precision with a loss scaler, and NCCL."""

from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from tests.strategy.conftest import make_batch, make_task, make_words

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore"),  # hints of Lightning
]


@pytest.mark.parametrize(
    ("precision", "strategy"),
    [("32-true", "auto"), ("bf16-mixed", "auto"), ("16-mixed", "auto"), ("bf16-true", "auto"), ("bf16-mixed", "fsdp2")],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_run_on_a_gpu_learns(precision: Any, strategy: str, compiled: bool) -> None:
    batch = make_batch(make_words(16))
    task = make_task(compile=compiled).float()
    trainer = Trainer(
        accelerator="gpu", devices=1, precision=precision, strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
    )  # fmt: skip
    trainer.fit(task, DataLoader([batch] * 60, batch_size=None))
    assert trainer.callback_metrics["train/loss"] < 1.0
