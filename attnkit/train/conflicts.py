"""Rejects, when the trainer is built, settings that would fail late, give wrong results or run untrusted code."""

import signal
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import BatchSizeFinder, Callback, LearningRateFinder, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.plugins import DoublePrecision, HalfPrecision
from lightning.pytorch.strategies import Strategy

from attnkit.callback.stopping import SIGNALS
from attnkit.checkpoint import is_exported
from attnkit.lightning_internals import disable_requeue, requeued_checkpoint
from attnkit.registry import ConfigurationError
from attnkit.strategy import FSDP2


def check_trainer(trainer: Trainer, *, precision: str, checkpoint: str | None, is_fit: bool) -> None:
    """Raise a `ConfigurationError` if trainer settings conflict with each other or with the `checkpoint` to load."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    if precision in ("16", "16-mixed") and isinstance(trainer.accelerator, CPUAccelerator):
        raise ConfigurationError("trainer.precision 16-mixed needs a GPU; on a CPU, use bf16-mixed or 32-true")
    if any(isinstance(c, StochasticWeightAveraging) for c in callbacks):
        raise ConfigurationError(
            "trainer.callbacks: StochasticWeightAveraging averages after the last checkpoint is written, so no file would hold "
            "the average. Use EMAWeightAveraging, or another WeightAveraging"
        )
    averaging = [type(c).__name__ for c in callbacks if isinstance(c, WeightAveraging)]
    if averaging and isinstance(trainer.precision_plugin, HalfPrecision | DoublePrecision):  # the average is in fp32
        raise ConfigurationError(
            f"trainer.callbacks: with precision {precision}, each validation would round the weights that {averaging[0]} averages, "
            f"so the result would depend on how often the run validates. Use bf16-mixed or 32-true"
        )
    tuners = [type(c).__name__ for c in callbacks if isinstance(c, BatchSizeFinder | LearningRateFinder)]
    if is_fit and checkpoint is not None and tuners:
        raise ConfigurationError(
            f"trainer.callbacks: {tuners[0]} would restart the resumed run from its first step. Remove it; the value it found is in the "
            f"checkpoint and in the run's config.yaml"
        )
    has_own_loader = type(trainer.strategy).load_checkpoint is not Strategy.load_checkpoint
    if checkpoint is not None and Path(checkpoint).is_dir() and has_own_loader and not isinstance(trainer.strategy, FSDP2):
        raise ConfigurationError(
            f"trainer.strategy: {type(trainer.strategy).__name__} would run code contained in a sharded checkpoint; use fsdp2 or ddp"
        )


def replace_requeue(trainer: Trainer, *, checkpoint: str | None) -> None:
    """Leave SLURM's signal, on which Lightning would requeue the job, to `attnkit.callback.stopping`.

    Raises:
        ConfigurationError: `attnkit.callback.stopping` does not handle that signal, or Lightning would continue the checkpoint of an
            earlier run, instead of `checkpoint`.
    """
    if (number := disable_requeue(trainer)) is not None and number not in (*SIGNALS, signal.SIGUSR1):
        raise ConfigurationError(
            f"trainer.plugins: requeue_signal must be SIGUSR1 or SIGTERM, but is {signal.Signals(number).name}, which would end the run "
            f"without a checkpoint"
        )
    if (checkpoint is None or is_exported(checkpoint)) and (found := requeued_checkpoint(trainer)) is not None:
        raise ConfigurationError(
            f"Lightning would continue {found}, which one of its runs saved when SLURM sent it a signal. Pass --ckpt_path {found}, or move "
            f"it to another folder"
        )
