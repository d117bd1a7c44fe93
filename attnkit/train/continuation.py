"""Makes resuming exact for a LightningModule that is not an attnkit task."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from attnkit.lightning_internals import forget_averages, is_resuming
from attnkit.task.resume import Place
from attnkit.train.output import say

PLAIN = (bool, int, float, str, tuple)
"""The types of an optimizer's settings."""


class Continuation(Callback):
    """Saves the position in the data and the states of the global random generators in each checkpoint, and restores both.

    Lightning restores neither: `shuffle=True` and dropout would repeat the random numbers of the first epoch, and after a checkpoint from
    within an epoch, a loader without a state would start from the beginning.

    It restores the settings of the optimizers, too; a note says if the module now configures others. After a fit with averaged weights, it
    gives an evaluation of a checkpoint the averages.
    """

    def __init__(self) -> None:
        self.place = Place()
        self._defaults: list[dict[str, Any]] = []  # of the optimizers in the run that started

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.place.load(checkpoint)
        if trainer.state.fn != "fit" and "averaging_state" in checkpoint:  # a callback that averages has loaded the current weights
            forget_averages(trainer)
            trainer.strategy.load_model_state_dict(checkpoint, strict=pl_module.strict_loading)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.place.begin(trainer, seeds=False)
        defaults = [{k: v for k, v in optimizer.defaults.items() if isinstance(v, PLAIN)} for optimizer in trainer.optimizers]
        if not is_resuming(trainer) or len(self._defaults) != len(defaults):
            self._defaults = defaults
        kept = [
            f"{key}={value} (not {now[key]})"
            for optimizer, then, now in zip(trainer.optimizers, self._defaults, defaults, strict=True)
            for key, value in then.items()
            if now.get(key, value) != value
            and all(group.get(f"initial_{key}", group.get(key)) != now[key] for group in optimizer.param_groups)
        ]
        if kept and trainer.is_global_zero:
            say(f"note: the optimizer continues with the settings in the checkpoint, not those of configure_optimizers: {', '.join(kept)}")

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

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"defaults": self._defaults}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._defaults = state_dict["defaults"]
