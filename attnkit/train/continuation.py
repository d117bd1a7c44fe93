"""Makes a resumed run of a LightningModule that is not an attnkit task equal to the uninterrupted one."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from attnkit.task.resume import Place


class Continuation(Callback):
    """Saves the place of a run and the states of the global random generators in each checkpoint, and continues from them.

    Lightning leaves the generators as a new run seeds them, so `shuffle=True` and dropout would repeat the draws of the first epoch; and if
    the checkpoint is from within an epoch, it starts a loader without a state from the beginning.
    """

    def __init__(self) -> None:
        self.place = Place()

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.place.load(checkpoint)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.place.begin(trainer, seeds=False)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.place.begin_epoch(trainer)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.place.begin_batch(trainer)

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if "fit_loop" in checkpoint.get("loops", ()):
            self.place.save(checkpoint, trainer)
