"""A probe during training."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from attnkit.lightning_internals import averaged
from attnkit.probe import Probe
from attnkit.registry import ConfigurationError, Spec, probes, require_at_least
from attnkit.task import Task


class Probing(Callback):
    """Runs a probe at the end of validations and logs its numbers as `probe/<column>/<line>/<x>_<value>`.

    The training is unchanged, bit for bit. With several processes only the first one probes, with its share of each batch, and models that
    are sharded over processes are refused.

    Args:
        probe: Spec of the probe: a name, or a mapping with a name and arguments.
        every_n_epochs: The fewest epochs between two runs; all validations of an epoch that has a run have one.

    Raises:
        ConfigurationError: There is no such probe, or a number is not positive; in use, the probe does not apply.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[Probing(probe={"name": "gradient", "length": 50})], accelerator="cpu", logger=False)
    """

    def __init__(self, *, probe: Spec, every_n_epochs: int = 1) -> None:
        require_at_least(1, every_n_epochs=every_n_epochs)
        self.probe: Probe = probes.build(probe)
        self._spec = probe
        self.every_n_epochs = every_n_epochs
        self._epoch: int | None = None  # of the latest run

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or (self._epoch is not None and 0 < trainer.current_epoch - self._epoch < self.every_n_epochs):
            return
        self._epoch = trainer.current_epoch
        if not trainer.loggers or not trainer.is_global_zero:
            return
        if not isinstance(pl_module, Task):
            raise ConfigurationError(f"Probing needs an attnkit task, but this is {type(pl_module).__name__}")
        with averaged(trainer, pl_module):
            found = self.probe(pl_module, getattr(trainer, "datamodule", None))
        for logger in trainer.loggers:
            logger.log_metrics({f"probe/{name}": value for name, value in found.scalars().items()}, step=trainer.global_step)

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(probe=self._spec, every_n_epochs=self.every_n_epochs)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._epoch = state_dict["epoch"]
