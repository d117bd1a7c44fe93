"""The strategy `fsdp2`: its names, and what it refuses before any process waits for another."""

from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.utils.data import DataLoader

from attnkit.registry import ConfigurationError
from attnkit.strategy import FSDP2
from tests.strategy.conftest import make_batch, make_task, make_words


def quiet(**arguments: Any) -> Trainer:
    return Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, **arguments)


@pytest.mark.parametrize(("name", "size"), [("fsdp2", 1), ("fsdp2_tp2", 2), ("fsdp2_tp4", 4), ("fsdp2_tp8", 8)])
def test_strategy_names_set_the_tensor_parallel_size(name: str, size: int) -> None:
    strategy = quiet(strategy=name, devices=8).strategy
    assert isinstance(strategy, FSDP2)
    assert strategy.tensor_parallel_size == size
    assert strategy.world_size == 8


def test_required_private_lightning_interfaces_exist() -> None:
    strategy = FSDP2()
    assert strategy._save_distributed_checkpoint is False  # of ModelParallelStrategy
    assert strategy._data_parallel_size == "auto"
    assert not isinstance(ModelParallelStrategy.setup_environment, property)


def test_invalid_sizes_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="must be positive, but is 0"):
        FSDP2(tensor_parallel_size=0)
    with pytest.raises(ConfigurationError, match="3 does not divide the number of processes: 2 nodes x 4 devices"):
        quiet(strategy=FSDP2(tensor_parallel_size=3), devices=4, num_nodes=2).strategy.setup_environment()


def test_a_loss_scaler_is_refused() -> None:
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with pytest.raises(ConfigurationError, match="does not support precision 16-mixed; use one of 32-true, bf16-mixed"):
        quiet(strategy="fsdp2", devices=1, plugins=[scaled]).strategy.setup_environment()


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_weight_averaging_is_rejected() -> None:
    trainer = quiet(strategy="fsdp2", devices=1, max_epochs=1, callbacks=[EMAWeightAveraging(decay=0.9)])
    with pytest.raises(ConfigurationError, match=r"EMAWeightAveraging cannot average sharded weights; .* use strategy ddp"):
        trainer.fit(make_task(), DataLoader([make_batch(make_words(2))], batch_size=None))
