"""Early stopping in a run that is resumed."""

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from typing_extensions import override

from attnkit.lightning_internals import is_resuming
from attnkit.train.output import say


class EarlyStops(Callback):
    """Gives each `EarlyStopping` of a resumed run the patience of the recipe, and does not train a run that it has already stopped.

    Lightning restores the patience of the checkpoint, and trains a stopped run until its next check.

    Args:
        ends: Whether a stopped run is complete, as for `--resume`; otherwise it is continued, as `--ckpt_path` asks.
    """

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends
        self._patience: dict[EarlyStopping, int] = {}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        self._patience = {callback: callback.patience for callback in callbacks if isinstance(callback, EarlyStopping)}

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not is_resuming(trainer):
            return
        for callback, patience in self._patience.items():
            is_prolonged = patience > max(callback.patience, callback.wait_count)
            callback.patience = patience
            reason = callback.stopping_reason
            if not self.ends or (is_prolonged and reason == EarlyStoppingReason.PATIENCE_EXHAUSTED):
                callback.stopping_reason = EarlyStoppingReason.NOT_STOPPED  # Lightning never resets it, and checkpoints keep it
            elif reason != EarlyStoppingReason.NOT_STOPPED:
                trainer.should_stop = True
        if trainer.should_stop and trainer.fit_loop.done and trainer.is_global_zero:
            say("note: EarlyStopping has ended this run; to train it further, raise its patience, or remove it")
