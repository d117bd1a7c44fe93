"""Stops a run whose loss has risen and stays high."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from attnkit.callback.health import UnhealthyError
from attnkit.registry import ConfigurationError, nearest, require_at_least


class Divergence(Callback):
    r"""Stops a run whose loss stays far above its best.

    It checks the metric every `trainer.log_every_n_steps` steps. A check fails if the metric exceeds `factor` times its lowest value so
    far; `patience` failed checks in a row stop the run. A loss that falls again resets the count.

    Args:
        monitor: A positive metric that is logged in training.
        factor: The multiple of the best value that counts as diverging.
        patience: Failed checks in a row.

    Raises:
        ConfigurationError: A wrong argument; in use, there is no such metric, or `trainer.log_every_n_steps` is 0.
        UnhealthyError: In use: the run diverges.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[Divergence(factor=3.0)], accelerator="cpu", logger=False)
    """

    def __init__(self, *, monitor: str = "train/loss", factor: float = 2.0, patience: int = 10) -> None:
        if factor <= 1:
            raise ConfigurationError(f"factor must be above 1, but is {factor}")
        require_at_least(1, patience=patience)
        self.monitor, self.factor, self.patience = monitor, factor, patience
        self.best = float("inf")
        self.bad = self._last = 0

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            raise ConfigurationError("Divergence checks whenever the run logs, but trainer.log_every_n_steps is 0")
        self._last = trainer.global_step  # a resumed run has the metrics of its own steps only

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step  # all of the previous step is logged now
        interval = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if step == self._last or step % interval:
            return
        self._last = step
        if self.monitor not in trainer.callback_metrics:
            known = sorted(trainer.callback_metrics)
            message = (
                f"Divergence monitors {self.monitor!r}, which is not logged.{nearest(self.monitor, known)} Logged: {', '.join(known)}."
            )
            raise ConfigurationError(message)
        value = float(trainer.callback_metrics[self.monitor])
        self.best = min(self.best, value)
        self.bad = self.bad + 1 if not value <= self.factor * self.best else 0
        if self.bad >= self.patience:
            raise UnhealthyError(
                f"after {step} steps {self.monitor} is {value:.4g}; it was above {self.factor:g} times its best ({self.best:.4g}) in the "
                f"last {self.bad} checks, {interval} steps apart. Continue from an earlier checkpoint with a lower learning rate, more "
                f"warmup, or --trainer.gradient_clip_val 1.0."
            )

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "bad": self.bad}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.bad = state_dict["best"], state_dict["bad"]
