"""A model with non-finite outputs on one of several processes."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor


class Break(Callback):
    """Multiplies a module's output, or its gradient, by infinity in one micro-batch of one process."""

    def __init__(self, *, process: int, batch: int, path: str, backward: bool = False) -> None:
        self.process, self.batch, self.path, self.backward = process, batch, path, backward
        self.now = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_rank == self.process:
            train: Any = pl_module.training_step
            pl_module.training_step = lambda batch, batch_idx: self._numbered(train, batch, batch_idx)  # type: ignore[method-assign]
            pl_module.get_submodule(self.path).register_forward_hook(self._hook)

    def _numbered(self, train: Any, batch: Any, batch_idx: int) -> Any:
        self.now = batch_idx
        loss = train(batch, batch_idx)
        self.now = -1
        return loss

    def _hook(self, module: Any, args: Any, output: Tensor) -> Tensor:
        if self.now != self.batch:
            return output
        if not self.backward:
            return output * float("inf")
        output.register_hook(lambda gradient: gradient * float("inf"))
        return output + 0
