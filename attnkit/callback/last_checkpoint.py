"""The checkpoint from which a killed run resumes."""

import signal
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from attnkit.callback.stopping import Stopped, stop_signals
from attnkit.files import remove
from attnkit.registry import check_positive

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
FIRST = "attnkit: the run saves its state and stops after this step, and after a validation that is due; Ctrl-C again ends it at once\n"


class LastCheckpoint(Checkpoint):
    """Keeps the newest state of a run as `checkpoints/last.ckpt`, and the previous one as `checkpoints/previous.ckpt`.

    Both are in the folder where Lightning's ModelCheckpoint puts its files by default.

    It is written between two optimizer steps, once the first one is fully logged: after each validation and each epoch, at intervals of
    steps and minutes, at the end of the run, and when SIGINT or SIGTERM stops it. A second SIGINT ends the run at once.

    Args:
        every_n_steps: Optimizer steps between two checkpoints (default: no such interval).
        every_n_minutes: Minutes between two checkpoints; None: no such interval.

    Raises:
        ConfigurationError: A number is not positive.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[LastCheckpoint(every_n_steps=1000)], accelerator="cpu", logger=False)
    """

    def __init__(self, *, every_n_steps: int | None = None, every_n_minutes: float | None = 10) -> None:
        check_positive(every_n_steps=every_n_steps, every_n_minutes=every_n_minutes)
        self.every_n_steps, self.every_n_minutes = every_n_steps, every_n_minutes
        self.path = Path(LAST)
        self._due = False
        self._step = 0  # of the newest checkpoint, like the time
        self._time = time.monotonic()

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.path = checkpoint_folder(trainer) / LAST

    @override
    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stop_signals.take()  # Lightning's handler interrupts validations, and starts communication inside other communication

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._due = False
        self._step, self._time = trainer.global_step, time.monotonic()
        stop_signals.take()
        if trainer.received_sigterm:  # Lightning's handler got it
            raise Stopped(signal.SIGTERM)
        stop_signals.defer(FIRST if trainer.is_global_zero else "")

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx % trainer.accumulate_grad_batches != 0:
            return
        stopping = self._stopping(trainer)
        if stopping is not None or self._is_due(trainer):
            self._save(trainer)
        if stopping is not None:
            if trainer.global_step == self._step > 0:
                rank_zero_info(f"Stopped by {stopping.name} after {trainer.global_step} steps, saved in {self.path}")
            raise Stopped(stopping)

    @staticmethod
    def _stopping(trainer: Trainer) -> signal.Signals | None:
        """Return the signal that any of the processes has received: all of them stop before the same step."""
        if trainer.world_size == 1:
            return stop_signals.received
        received = torch.tensor(stop_signals.received or 0, device=trainer.strategy.root_device)
        number = int(trainer.strategy.reduce(received, reduce_op="max"))
        return signal.Signals(number) if number else None

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stop_signals.act()  # a deferred signal came too late: all steps are done

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._due |= not trainer.sanity_checking

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._due = True
        epochs = trainer.max_epochs
        if trainer.should_stop or trainer.global_step == trainer.max_steps or (epochs and 0 < epochs <= trainer.current_epoch + 1):
            self._save(trainer)

    def _is_due(self, trainer: Trainer) -> bool:
        step = trainer.global_step
        due = self._due or (self.every_n_steps is not None and step % self.every_n_steps == 0)
        if self.every_n_minutes is not None and (trainer.world_size == 1 or step % 20 == 0):  # asking all processes takes time
            due |= bool(trainer.strategy.broadcast(time.monotonic() - self._time >= 60 * self.every_n_minutes))
        return due

    def _save(self, trainer: Trainer) -> None:
        self._due = False
        if trainer.global_step == self._step or getattr(trainer, "fast_dev_run", False):
            return
        if trainer.is_global_zero and self.path.exists():
            previous = self.path.with_name(PREVIOUS)
            remove(previous)
            self.path.replace(previous)
        trainer.strategy.barrier()
        trainer.save_checkpoint(self.path, weights_only=False)
        self._step, self._time = trainer.global_step, time.monotonic()


def checkpoint_folder(trainer: Trainer) -> Path:
    """Return the folder of a run's checkpoints, as ModelCheckpoint chooses it: below that of the first logger's version.

    All processes call it, since only the first one may know the version.
    """
    root = Path(trainer.default_root_dir)
    if trainer.loggers:
        logger = trainer.loggers[0]
        version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
        root = Path(logger.save_dir or root) / str(logger.name) / version
    return Path(trainer.strategy.broadcast(root / "checkpoints"))
