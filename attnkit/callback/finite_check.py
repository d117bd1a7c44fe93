"""Stops a run at a non-finite loss or gradient, or skips the step."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

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
from attnkit.lightning_internals import clips_what_it_sees, log_step, validates_next
from attnkit.registry import ConfigurationError, require_at_least
from attnkit.task import Task
from attnkit.task.steps import gradients

Policy = Literal["stop", "skip"]
KEPT = "not_finite.pt"  # the batches of a step that is not finite, in the run's folder

ADVICE = "Try a lower learning rate or more warmup, --trainer.gradient_clip_val 1.0, or --trainer.precision 32-true."


class Step(NamedTuple):
    """An optimizer step, and whether it is finite."""

    optimizer: Optimizer
    number: int
    epoch: int
    micro_batches: list[MicroBatch]
    answer: Tensor  # [2] bool: whether the norm of the gradient and the loss are finite
    copied: torch.cuda.Event | None  # when the answer has reached the host

    def read(self) -> tuple[bool, bool]:
        """Return the answer, waiting for it."""
        if self.copied is not None:
            self.copied.synchronize()
        norm, loss = self.answer.tolist()
        return norm, loss


class FiniteCheck(Callback):
    r"""Checks the loss and the gradient of every optimizer step before it is taken, and prevents the step if either is nan or inf.

    Only then is the step repeated with hooks, to name the first module whose output or gradient was not finite. Checkpoints with
    non-finite parameters are not written.

    Logs `train/gradient_norm`, the L2 norm over all parameters of the optimizer before clipping, which uses the same number unless a later
    callback may change the gradients. It also logs `train/skipped_steps`, from the first skipped step on.

    Each step reads a single answer from the device; the rest is computed there. With `stop` and a fused Adam or AdamW on one GPU, the host
    does not wait for it: the optimizer leaves the parameters unchanged if the answer is no, and the answer is read one step later, or
    before a validation or a checkpoint. With a loss scaler (`16-mixed`), a gradient that overflows is normal: the scaler skips the step
    itself, and only more than `most_skips` in a row stop the run.

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
        self._evaluated: list[MicroBatch] = []  # in the current step, which an optimizer such as LBFGS evaluates several times
        self._loss: Tensor | None = None
        self._shares_norm = False
        self._unread: Step | None = None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._micro_batches, self._evaluated, self._loss, self._unread = [], [], None, None  # of a run that was interrupted

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        is_sharded = any(isinstance(p, DTensor) for p in pl_module.parameters())
        self._shares_norm = isinstance(pl_module, Task) and not is_sharded and clips_what_it_sees(trainer, self)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._evaluated = []
        self._micro_batches.append(MicroBatch(batch_idx, batch, random_state(pl_module.device)))

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        self._read(trainer, pl_module)
        norm = norm_of(gradients(optimizer))
        loss = norm.new_zeros(()) if self._loss is None else self._loss.to(norm)
        if trainer.world_size > 1:
            loss = trainer.strategy.reduce(loss, reduce_op="sum")  # all processes make the same decision
        log_step(pl_module, {"train/gradient_norm": norm})
        if self._shares_norm:
            pl_module.norm_to_clip = norm
        answer = torch.stack([norm, loss]).isfinite()
        waits, copied = self.policy == "stop" and trainer.world_size == 1 and can_wait(trainer, optimizer), None
        if waits:
            optimizer.found_inf = (~answer.all()).float()  # type: ignore[attr-defined]  # fused kernels return at once if it is 1
            answer, copied = on_host(answer)
        self._evaluated = self._micro_batches or self._evaluated
        step = Step(optimizer, trainer.global_step, trainer.current_epoch, self._evaluated, answer, copied)
        self._micro_batches, self._loss = [], None
        if waits:
            self._unread = step
        else:
            self._judge(trainer, pl_module, step)
        if self.skipped:
            pl_module.log("train/skipped_steps", float(self.skipped))

    def _read(self, trainer: Trainer, task: LightningModule) -> None:
        """Act on the answer of the last step, if it has not been read yet."""
        step, self._unread = self._unread, None
        if step is not None:
            step.optimizer.found_inf = None  # type: ignore[attr-defined]
            self._judge(trainer, task, step)

    def _judge(self, trainer: Trainer, task: LightningModule, step: Step) -> None:
        norm_is_finite, loss_is_finite = step.read()
        if norm_is_finite and loss_is_finite:
            self._in_a_row = 0
        else:
            if isinstance(task, Task):
                task.norm_to_clip = None
            self._handle(trainer, task, step, f"loss {_word(loss_is_finite)}, gradient {_word(norm_is_finite)}", loss_is_finite)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._unread is not None and validates_next(trainer):  # a validation has no gradients, with which the step is repeated
            self._read(trainer, pl_module)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._read(trainer, pl_module)

    def _handle(self, trainer: Trainer, task: LightningModule, step: Step, what: str, loss_is_finite: bool) -> None:
        if not isinstance(task, Task):
            raise ConfigurationError(f"FiniteCheck needs an attnkit task, but this is {type(task).__name__}")
        is_scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        self.skipped += 1
        self._in_a_row += 1
        is_overflow = is_scaled and loss_is_finite
        skips = is_overflow or self.policy == "skip"
        if is_overflow and self._in_a_row <= self.most_skips:
            return  # the scaler skips it and lowers its scale
        where = f"step {step.number} is not finite ({what}; epoch {step.epoch}, batch {step.micro_batches[-1].number})"
        first = first_not_finite(trainer, task, step.micro_batches)  # clears the gradients, without which optimizers change nothing
        if skips and self._in_a_row <= self.most_skips:
            rank_zero_warn(f"{where} and is skipped, the {_ordinal(self.skipped)} of this run. First non-finite values: {first.what}.")
            return
        reason = f"; that is {self._in_a_row} in a row" if skips else ""
        raise UnhealthyError(f"{where}{reason}. First non-finite values: {first.what}.{self._keep(trainer, step, first.process)} {ADVICE}")

    def _keep(self, trainer: Trainer, step: Step, process: int) -> str:
        """Write the batches of a process in the step next to the run's logs, and return a sentence that says where."""
        if (folder := trainer.log_dir) is None:  # all processes ask, since it is broadcast
            return ""
        path = Path(folder) / KEPT
        if trainer.global_rank == process:
            with atomic(path) as draft:
                torch.save([micro.batch for micro in step.micro_batches], draft)
        trainer.strategy.barrier()  # the end of one process ends the others
        return f" The batch is in {path}."

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if torch.is_grad_enabled():  # otherwise a validation saves it, and a step, which cannot be repeated now, is read after it
            self._read(trainer, pl_module)
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


def can_wait(trainer: Trainer, optimizer: Optimizer) -> bool:
    """Return whether a fused step on a GPU can check by itself that the gradients are finite."""
    is_fused = type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and all(group["fused"] for group in optimizer.param_groups)
    return is_fused and trainer.strategy.root_device.type == "cuda" and getattr(trainer.precision_plugin, "scaler", None) is None


def on_host(answer: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Return a copy of the answer on the host, and the event after which it is there."""
    if not answer.is_cuda:
        return answer, None
    host, event = torch.empty(answer.shape, dtype=torch.bool, pin_memory=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
    host.copy_(answer, non_blocking=True)
    event.record()
    return host, event


def norm_of(tensors: list[Tensor]) -> Tensor:
    """Return the joint L2 norm of tensors, which may be sharded over different meshes."""
    meshes: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        meshes.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    norms = [get_total_norm(group) for group in meshes.values()]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    return torch.stack(whole).norm() if whole else torch.zeros(())


def _word(is_finite: bool) -> str:
    return "finite" if is_finite else "not finite"


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
