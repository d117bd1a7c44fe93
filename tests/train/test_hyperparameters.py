"""The recipe in the user's own loggers: as hyperparameters, and as `config.yaml` in the folder of each run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateFinder
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import DummyLogger

from attnkit.train.hyperparameters import Hyperparameters, keeps_hyperparameters
from tests.train.test_resume import write_recipe

Command = Callable[..., Any]
RECIPE = {"model": {"name": "mine", "lr": 0.1}, "data": {"name": "text"}, "seed_everything": 7, "trainer": {"max_epochs": 1}}
LOGGED: list[Mapping[str, Any]] = []


class Keeper(DummyLogger):
    """Logs to another place, in folders named after runs, as W&B does."""

    name, save_dir = "project", "Z"

    def __init__(self, version: str = "run") -> None:
        super().__init__()
        self._version = version

    @property
    def version(self) -> str:
        return self._version

    def log_hyperparams(self, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        LOGGED.append(dict(params))


class MLflow(MLFlowLogger):
    """A run of MLflow that has hyperparameters."""

    run_id = "1"

    def __new__(cls, params: Mapping[str, str]) -> "MLflow":
        made = super().__new__(cls)
        made.params = params
        return made

    @property
    def experiment(self) -> Any:
        return SimpleNamespace(get_run=lambda _: SimpleNamespace(data=SimpleNamespace(params=self.params)))


@pytest.fixture(autouse=True)
def forgotten() -> None:
    LOGGED.clear()


def test_runs_of_any_logger_have_their_own_recipe_and_hyperparameters(attnkit: Command, tmp_path: Path) -> None:
    write_recipe(tmp_path, Random(0))
    for width, name in ((16, "a"), (32, "b")):
        flags = ["--trainer.logger", f"{__name__}.Keeper", "--trainer.logger.version", name, "--model.stack.d_model", str(width)]
        outcome = attnkit("fit", "--config", "tiny.yaml", "--trainer.max_steps", "1", *flags)
        assert outcome.status == 0, outcome.err
    assert [list(found) for found in LOGGED] == [["model", "data", "seed_everything"]] * 2
    assert [found["model"]["stack"]["d_model"] for found in LOGGED] == [16, 32]
    for found, name in zip(LOGGED, "ab", strict=True):
        saved = yaml.safe_load((tmp_path / "Z/project" / name / "config.yaml").read_text())
        assert {key: saved[key] for key in found} == found


def test_hyperparameters_are_those_that_a_tuner_found() -> None:
    logger, module = Keeper(), LightningModule()
    module.lr = 0.1
    trainer = Trainer(logger=logger, callbacks=[LearningRateFinder()], accelerator="cpu", enable_progress_bar=False)
    callback = Hyperparameters(RECIPE)
    callback.setup(trainer, module, "fit")
    trainer.loggers = [DummyLogger()]  # while the tuner runs
    callback.on_train_start(trainer, module)
    assert not LOGGED
    trainer.loggers, module.lr = [logger], 0.5
    callback.on_train_start(trainer, module)
    callback.on_train_start(trainer, module)
    assert LOGGED == [{"model": {"name": "mine", "lr": 0.5}, "data": {"name": "text"}, "seed_everything": 7}]


def test_a_record_that_continues_keeps_its_hyperparameters(tmp_path: Path) -> None:
    first = TensorBoardLogger(tmp_path, version=0)
    assert not keeps_hyperparameters(first)
    first.log_hyperparams(RECIPE)
    first.save()
    assert keeps_hyperparameters(TensorBoardLogger(tmp_path, version=0))
    assert [keeps_hyperparameters(MLflow.__new__(MLflow, params)) for params in ({}, {"model/name": "mine"})] == [False, True]
