"""Ends a run of a study once its budget is used up."""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from attnkit.lightning_internals import is_accumulating
from attnkit.profile.flops import BACKWARD, Exponents, batch_flops, forward_flops
from attnkit.registry import ConfigurationError
from attnkit.task import Task
from attnkit.worker.budget import Budget
from attnkit.worker.costs import of_all_processes


class Limit(Callback):
    """Ends a run, with a validation, at the first optimizer step at which its budget is used up. Must come after the `Recorder`.

    FLOPs are those of matrix products and scans for non-padding tokens, forward and backward, summed over processes; see
    `attnkit.profile.flops`. `tokens` and `seconds` return those of training so far; seconds are averaged over processes.
    """

    state_key = "attnkit_budget"

    def __init__(self, budget: Budget, *, tokens: Callable[[], int], seconds: Callable[[], float]) -> None:
        self.budget, self.tokens, self.seconds = budget, tokens, seconds
        self.flops = 0
        self.spent: float = 0
        self._formula: dict[Exponents, int] = {}

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.budget.on == "flops" and isinstance(pl_module, Task):
            self._formula = forward_flops(pl_module)
        trainer.should_stop |= self.spent >= self.budget.limit  # the run was killed between the end of training and the result

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._formula and isinstance(pl_module, Task):
            self.flops += of_all_processes(trainer, (1 + BACKWARD) * batch_flops(self._formula, pl_module, batch))
        if self.budget.on == "tokens" and not self.tokens():
            raise ConfigurationError("budget: batches have no tokens (nonzero int64 values): use steps or seconds")
        if is_accumulating(trainer):
            return
        used = {"steps": trainer.global_step, "tokens": self.tokens(), "flops": self.flops, "seconds": self.seconds()}[self.budget.on]
        if trainer.world_size > 1 and self.budget.on == "seconds":
            mean = trainer.strategy.reduce(torch.tensor(used, dtype=torch.float64, device=pl_module.device), reduce_op="mean")
            used = float(mean)
        self.spent = used
        trainer.should_stop |= self.spent >= self.budget.limit

    def require_spent(self) -> None:
        """Raise a `ConfigurationError` if the run ended before its budget was used up, which makes it incomparable with others."""
        if self.spent < self.budget.limit:
            raise ConfigurationError(
                f"training ended after {self.spent:g} {self.budget.on}, before its budget of {self.budget.limit:g}: "
                "increase trainer.max_epochs (which also lengthens the schedule), and do not stop the run in any other way"
            )

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"flops": self.flops, "spent": self.spent}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.flops, self.spent = state_dict["flops"], state_dict["spent"]
