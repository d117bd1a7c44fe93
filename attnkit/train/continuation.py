"""Makes resuming exact for a LightningModule that is not an attnkit task."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from attnkit.task.resume import Place


class Continuation(Callback):
    """Saves the position in the data and the states of the global random generators in each checkpoint, and restores both.

    Lightning restores neither: `shuffle=True` and dropout would repeat the random numbers of the first epoch, and after a checkpoint from
    within an epoch, a loader without a state would start from the beginning.
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
