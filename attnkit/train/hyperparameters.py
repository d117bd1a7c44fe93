"""The recipe as the hyperparameters of a run in the user's own loggers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from attnkit.lightning_internals import tuned_values
from attnkit.recipe import SEED, SPEC_KEYS


class Hyperparameters(Callback):
    """Logs the sections `model` and `data` of a recipe and its seed as hyperparameters, with the values that Lightning's tuners found.

    A continued record of TensorBoard or MLflow keeps those that it has: TensorBoard would store them twice, and MLflow refuses others.
    """

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        seed = recipe.get("seed_everything", SEED)
        self.options = {key: recipe[key] for key in SPEC_KEYS if key in recipe} | {"seed_everything": seed}
        self._new: list[Logger] = []  # those that have none yet

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            self._new = [logger for logger in trainer.loggers if not keeps_hyperparameters(logger)]
            if not any(isinstance(c, BatchSizeFinder | LearningRateFinder) for c in trainer.callbacks):  # type: ignore[attr-defined]
                self._log(trainer)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._new and (tuned := tuned_values(trainer, pl_module)):
            for key in SPEC_KEYS:
                if key in self.options:
                    self.options[key] = {name: tuned.get(name, value) for name, value in self.options[key].items()}
        self._log(trainer)

    @rank_zero_only
    def _log(self, trainer: Trainer) -> None:
        for logger in [logger for logger in self._new if logger in trainer.loggers]:  # a tuner replaces them while it runs
            logger.log_hyperparams(self.options)
            self._new.remove(logger)


def keeps_hyperparameters(logger: Logger) -> bool:
    """Return whether a continued record already has hyperparameters that cannot be replaced."""
    if isinstance(logger, MLFlowLogger):
        return bool(logger.experiment.get_run(logger.run_id).data.params)
    return has_hyperparameters(logger)


def has_hyperparameters(logger: Logger) -> bool:
    """Return whether a continued record already has hyperparameters, which TensorBoard would store twice; MLflow accepts equal ones."""
    return isinstance(logger, TensorBoardLogger) and Path(logger.log_dir, logger.NAME_HPARAMS_FILE).exists()
