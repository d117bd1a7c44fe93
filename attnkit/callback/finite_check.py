"""Stops a run at a non-finite loss or gradient, or skips the step."""

from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from typing_extensions import override

from attnkit.callback.diagnosis import MicroBatch, count, first_not_finite, random_state
from attnkit.callback.health import UnhealthyError
from attnkit.files import atomic
from attnkit.lightning_internals import clips_what_it_sees, log_step
from attnkit.registry import ConfigurationError, require_at_least
from attnkit.task import Task
from attnkit.task.steps import gradients

Policy = Literal["stop", "skip"]

ADVICE = "Try a lower learning rate or more warmup, --trainer.gradient_clip_val 1.0, or --trainer.precision 32-true."


class FiniteCheck(Callback):
    r"""Checks the loss and the gradient of every optimizer step before it is taken, and prevents the step if either is nan or inf.

    Only then is the step repeated with hooks, to name the first module whose output or gradient was not finite. Checkpoints with
    non-finite parameters are not written.

    Logs `train/gradient_norm`, the L2 norm over all parameters of the optimizer before clipping, which uses the same number unless a later
    callback may change the gradients. It also logs `train/skipped_steps`, from the first skipped step on.

    Each step reads a single answer from the device; the rest is computed there. With a loss scaler (`16-mixed`), a gradient that overflows
    is normal: the scaler skips the step itself, and only more than `most_skips` in a row stop the run.

    Args:
        policy: `stop` ends the run; `skip` leaves parameters and the optimizer's state unchanged, counts the step, and continues. The
            schedule and the step counter advance.
        most_skips: Maximum number of consecutive skipped steps; one more stops the run.

    Raises:
        ConfigurationError: A wrong argument; in use, the task is not one of attnkit.
        UnhealthyError: In use: a step is not finite, or too many in a row are not.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[FiniteCheck(policy="skip")], accelerator="cpu", logger=False)
    """

    def __init__(self, *, policy: Policy = "stop", most_skips: int = 10) -> None:
        if policy not in ("stop", "skip"):
            raise ConfigurationError(f"policy must be stop or skip, but is {policy!r}")
        require_at_least(0, most_skips=most_skips)
        self.policy, self.most_skips = policy, most_skips
        self.skipped = self._in_a_row = 0
        self._micro_batches: list[MicroBatch] = []
        self._loss: Tensor | None = None
        self._shares_norm = False

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        is_sharded = any(isinstance(p, DTensor) for p in pl_module.parameters())
        self._shares_norm = isinstance(pl_module, Task) and not is_sharded and clips_what_it_sees(trainer, self)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._micro_batches.append(MicroBatch(batch_idx, batch, random_state(pl_module.device)))

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        norm = norm_of(gradients(optimizer))
        loss = norm.new_zeros(()) if self._loss is None else self._loss.to(norm)
        if trainer.world_size > 1:
            loss = trainer.strategy.reduce(loss, reduce_op="sum")  # all processes make the same decision
        log_step(pl_module, {"train/gradient_norm": norm})
        norm_is_finite, loss_is_finite = torch.stack([norm, loss]).isfinite().tolist()
        if norm_is_finite and loss_is_finite:
            self._in_a_row = 0
            if self._shares_norm:
                pl_module.norm_to_clip = norm
        else:
            self._handle(trainer, pl_module, optimizer, f"loss {_word(loss_is_finite)}, gradient {_word(norm_is_finite)}", loss_is_finite)
        if self.skipped:
            pl_module.log("train/skipped_steps", float(self.skipped))
        self._micro_batches, self._loss = [], None

    def _handle(self, trainer: Trainer, task: LightningModule, optimizer: Optimizer, what: str, loss_is_finite: bool) -> None:
        if not isinstance(task, Task):
            raise ConfigurationError(f"FiniteCheck needs an attnkit task, but this is {type(task).__name__}")
        is_scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        self.skipped += 1
        self._in_a_row += 1
        is_overflow = is_scaled and loss_is_finite
        skips = is_overflow or self.policy == "skip"
        if is_overflow and self._in_a_row <= self.most_skips:
            return  # the scaler skips it and lowers its scale
        where = f"step {trainer.global_step} is not finite ({what}; epoch {trainer.current_epoch}, batch {self._micro_batches[-1].number})"
        first = first_not_finite(trainer, task, self._micro_batches)  # clears the gradients, without which optimizers change nothing
        if skips and self._in_a_row <= self.most_skips:
            rank_zero_warn(f"{where} and is skipped, the {_ordinal(self.skipped)} of this run. First: {first.what}.")
            return
        reason = f"; that is {self._in_a_row} in a row" if skips else ""
        raise UnhealthyError(f"{where}{reason}. First: {first.what}.{self._keep(trainer, first.process)} {ADVICE}")

    def _keep(self, trainer: Trainer, process: int) -> str:
        """Write the batches of a process in the step beside the run's logs, and return a sentence that says where."""
        if (folder := trainer.log_dir) is None:  # all processes ask, since it is broadcast
            return ""
        path = Path(folder) / "not_finite.pt"
        if trainer.global_rank == process:
            with atomic(path) as draft:
                torch.save([micro.batch for micro in self._micro_batches], draft)
        trainer.strategy.barrier()  # the end of one process ends the others
        return f" The batch is in {path}."

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        parameters = [p.detach() for p in pl_module.parameters()]
        if trainer.training and not bool(norm_of(parameters).isfinite()):
            name, bad = next(((n, bad) for n, p in pl_module.named_parameters() if (bad := count(p)) is not None), ("elsewhere", "inf"))
            raise UnhealthyError(
                f"after {trainer.global_step} steps the parameter {name} is not finite: {bad}. No checkpoint is written; earlier "
                f"ones are intact. {ADVICE}"
            )

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "in_a_row": self._in_a_row}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.skipped, self._in_a_row = state_dict["skipped"], state_dict["in_a_row"]


def norm_of(tensors: list[Tensor]) -> Tensor:
    """Return the joint L2 norm of tensors, which may be sharded over different meshes."""
    meshes: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        meshes.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    norms = [get_total_norm(group) for group in meshes.values()]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    return torch.stack(whole).norm() if whole else torch.zeros(())


def _word(is_finite: bool) -> str:
    return "finite" if is_finite else "not"


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
