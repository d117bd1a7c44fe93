"""Training steps whose gradient is exact: a sum over all targets of the step, divided once by their number."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from attnkit import draws
from attnkit.lightning_internals import log_step, trainer_of
from attnkit.reports import reporters, take_reports
from attnkit.strategy import data_share
from attnkit.task.loss import Sums

# The loss is backpropagated as a sum times this unit, and gradients are divided by the token count afterwards. The unit only keeps fp16
# gradients in range (as does a mean over 4,096 tokens); as a power of two, it does not change the digits.
UNIT = 2.0**-12


class ExactSteps(LightningModule, ABC):
    """A module whose training steps return sums, and whose dropout is a function of seed, epoch and example.

    The gradient of an optimizer step is the gradient of (sum of the loss over all targets) / (number of targets), where both are over
    all micro-batches (`trainer.accumulate_grad_batches`) and all ranks, however unequal. Callbacks see it in this form in
    `on_before_optimizer_step`, before it is clipped.

    `train/loss` is the negative log-likelihood per target of the same step, without label smoothing. Losses that modules report
    (`attnkit.reports`, such as the balance of experts) are added to the loss of each micro-batch, weighted by its targets; what they report
    for an optimizer step is logged as `train/PATH/NAME`. A batch whose `example` [B] are all negative is a filler, which does not count.
    """

    draw_seed: int | None = None  # seed of dropout and other draws in training, kept in checkpoints (default: that of `seed_everything`)
    norm_to_clip: Tensor | None = None  # the norm of the gradients about to be clipped, if a callback has computed it, for clipping to use

    @abstractmethod
    def objective(self, batch: Any) -> Sums:
        """Return the sums of a batch."""

    def training_log(self, nll: Tensor) -> dict[str, Tensor]:
        """Return the values to log as `train/...` at an optimizer step, from its negative log-likelihood per target."""
        return {"loss": nll}

    @property
    def data_rank(self) -> int:
        """The index of this process's share of the data: its rank, except that processes of a tensor-parallel group have the same index."""
        return 0 if (trainer := trainer_of(self)) is None else data_share(trainer).rank

    @override
    def on_train_start(self) -> None:
        self._tally = torch.zeros(2, dtype=torch.float32 if self.device.type == "mps" else torch.float64, device=self.device)
        self._nll: Tensor | None = None
        self._reporters = reporters(self)
        self._reported: dict[str, Tensor] = {}
        self._reports: dict[str, Tensor] = {}
        if self.draw_seed is None:
            self.draw_seed = int(self.trainer.strategy.broadcast(torch.initial_seed()))

    @override
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        assert self.draw_seed is not None
        draws.begin(self.row_keys(batch, batch_idx, self.draw_seed, self.current_epoch))
        sums = self.objective(batch)
        self._tally += torch.stack([sums.targets.to(self._tally), sums.nll.to(self._tally)])
        loss = sums.loss
        reports = take_reports(self._reporters)
        present = (batch["example"] >= 0).any() if reports and isinstance(batch, Mapping) and "example" in batch else 1  # 0: a filler
        for path, report in reports.items():
            loss = loss + report.loss * sums.targets
            self._reported[path] = self._reported.get(path, 0) + report.sums.to(self._tally) * present
        return loss * UNIT

    @override
    def on_after_backward(self) -> None:
        take_reports(self._reporters)  # recomputed activations report again

    def row_keys(self, batch: Any, batch_idx: int, *words: int) -> Tensor:
        """Return a key [B] for each row of a batch, for draws of dropout and masks: a function of the example and `words`, such as a seed.

        `batch["example"]` [B], which attnkit's data modules provide, identifies the example of each row. Without it, a row is identified by
        the batch, the process and its index there, so the numbers drawn depend on the number of processes.
        """
        if isinstance(batch, Mapping) and "example" in batch:
            return draws.make_keys(batch["example"], *words)
        rows, device = next(((x.shape[0], x.device) for x in tree_leaves(batch) if isinstance(x, Tensor) and x.ndim > 0), (1, self.device))
        return draws.make_keys(torch.arange(rows, device=device), *words, batch_idx, self.data_rank)

    @override
    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Optimizer | LightningOptimizer, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        def closure() -> Any:
            assert optimizer_closure is not None
            loss = optimizer_closure()  # runs the last micro-batch and sums over ranks
            self._divide_gradients(optimizer)
            return loss

        super().optimizer_step(epoch, batch_idx, optimizer, closure)

    @override
    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        norm, self.norm_to_clip = self.norm_to_clip, None
        if norm is None or not gradient_clip_val or gradient_clip_val < 0 or gradient_clip_algorithm not in (None, "norm"):
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        else:
            clip_grads_with_norm_((p for group in optimizer.param_groups for p in group["params"]), gradient_clip_val, norm)

    def _divide_gradients(self, optimizer: Optimizer | LightningOptimizer) -> None:
        """Rescale gradients of (loss sum) * UNIT / (micro-batches * ranks) to those of (loss sum) / count, over all micro-batches and
        ranks.

        Ranks of a tensor-parallel group share a batch and count as one.
        """
        summed = self.trainer.strategy.reduce(self._tally, reduce_op="sum")
        assert isinstance(summed, Tensor)
        ranks = data_share(self.trainer).num_replicas
        tally = summed * (ranks / self.trainer.world_size)
        count = tally[0].clamp(min=1)
        factor = self.trainer.accumulate_grad_batches * ranks / UNIT / count
        found = gradients(optimizer)
        if found and not any(isinstance(grad, DTensor) for grad in found):
            # a factor of another type would multiply the tensors one by one, and one in half precision would be rounded
            torch._foreach_mul_(found, factor.to(torch.promote_types(found[0].dtype, torch.float32)))
        else:
            for grad in found:
                grad.mul_(factor)
        self._nll = tally[1] / tally[0]  # NaN, as in validation, if the step had no targets
        self._tally = torch.zeros_like(self._tally)
        self._end_reports()

    def _end_reports(self) -> None:
        """Sum the reports of this step over processes, pass the sums to the modules, and keep the values they return, to be logged."""
        for path, module in self._reporters.items() if self._reported else ():
            summed = self.trainer.strategy.reduce(self._reported[path], reduce_op="sum")
            assert isinstance(summed, Tensor)
            self._reports |= {f"{path}/{name}": value for name, value in module.end_step(summed).items()}
        self._reported = {}

    @override
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        draws.begin(None)
        if self._nll is not None:  # an optimizer step was made
            log_step(self, {f"train/{name}": value for name, value in self.training_log(self._nll).items()}, prog_bar=True)
            log_step(self, {f"train/{name}": value for name, value in self._reports.items()})
            self._nll, self._reports = None, {}

    @override
    def teardown(self, stage: str) -> None:
        draws.begin(None)  # a failed step leaves its keys behind


def gradients(optimizer: Optimizer | LightningOptimizer) -> list[Tensor]:
    """Return the gradients that an optimizer reads."""
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
