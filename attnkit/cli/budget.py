"""What a run of a study may use: steps, tokens, operations or seconds."""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from attnkit.ablation.study import Budget
from attnkit.cli.flops import BACKWARD, forward_flops
from attnkit.registry import ConfigurationError


class Limit(Callback):
    """Ends a run at the first optimizer step at which its budget is used, with a validation. It goes after the `Recorder`.

    Operations are those of products of matrices, forward and backward. They follow from the shapes of a batch, so each shape is counted
    once, by a forward pass. Over several processes, tokens and operations are summed.

    Args:
        budget: What may be used.
        tokens: Returns how many tokens were seen.
        seconds: Returns how long the training took.
    """

    state_key = "attnkit_budget"

    def __init__(self, budget: Budget, *, tokens: Callable[[], int], seconds: Callable[[], float]) -> None:
        self.budget, self.tokens, self.seconds = budget, tokens, seconds
        self.flops = 0
        self.spent: float = 0
        self._known: dict[Any, int] = {}

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop |= self.spent >= self.budget.limit  # it was killed when all was done but to write its result

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.budget.on == "flops":
            shapes = tuple(tuple(leaf.shape) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
            if shapes not in self._known:
                with torch.random.fork_rng():
                    self._known[shapes] = (1 + BACKWARD) * forward_flops(pl_module, batch)
            self.flops += self._known[shapes]
        if trainer.fit_loop._should_accumulate():
            return
        used = {"steps": trainer.global_step, "tokens": self.tokens(), "flops": self.flops, "seconds": self.seconds()}[self.budget.on]
        if trainer.world_size > 1 and self.budget.on != "steps":
            summed = trainer.strategy.reduce(torch.tensor(used, dtype=torch.float64, device=pl_module.device), reduce_op="sum")
            used = float(summed) / (trainer.world_size if self.budget.on == "seconds" else 1)
        self.spent = used
        trainer.should_stop |= self.spent >= self.budget.limit

    def require_spent(self) -> None:
        """Raise if the run ended before its budget was used: it cannot be compared with one that used it.

        Raises:
            ConfigurationError: It did.
        """
        if self.spent < self.budget.limit:
            raise ConfigurationError(
                f"the training ended after {self.spent:g} {self.budget.on}, before its budget of {self.budget.limit:g}: "
                "set trainer.max_epochs higher (it is also how long the schedule is), and stop by nothing else"
            )

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"flops": self.flops, "spent": self.spent, "known": self._known}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.flops, self.spent, self._known = (state_dict[name] for name in ("flops", "spent", "known"))
