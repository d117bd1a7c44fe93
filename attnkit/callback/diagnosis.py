"""Finds the origin of the first non-finite number: repeats the step with hooks in every module."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from attnkit.lightning_internals import in_training_step
from attnkit.task import Task


class MicroBatch(NamedTuple):
    """A micro-batch of a step, and the states of the generators before it."""

    number: int  # its number in the epoch
    batch: Any
    random: tuple[Tensor, ...]


def random_state(device: torch.device) -> tuple[Tensor, ...]:
    """Return the states of torch's generators that a model on `device` draws from."""
    return (torch.get_rng_state(), *((torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()))


# Kinds of findings, from cause to effect. Gradients are summed over processes, so a parameter's gradient says the least about the origin.
_OUTPUT, _LOSS, _GRADIENT, _PARAMETER = range(4)
_Found = tuple[int, int, str]  # the micro-batch, the kind, and a description


class Origin(NamedTuple):
    """The first non-finite value, and the process where it occurred."""

    what: str
    process: int


def first_not_finite(trainer: Trainer, task: Task, batches: Sequence[MicroBatch]) -> Origin:
    """Return the first non-finite value: a parameter, the output of a module, or the gradient of one.

    The step is repeated with the same parameters, micro-batches and dropout, without torch.compile. Gradients are cleared; parameters and
    random states are unchanged. With several processes, all must call it, and all get the same answer. A non-finite number reaches the
    gradients of all processes, so the process where it was an output counts.
    """
    bad = ((name, count(parameter)) for name, parameter in task.named_parameters())
    found = next(((0, _PARAMETER, f"the parameter {name}: {what}; an earlier step caused it") for name, what in bad if what), None)
    if (origin := _earliest(trainer, found)) is not None:
        return origin
    before, tally = random_state(task.device), task._tally.clone()
    task.zero_grad()
    with torch.compiler.set_stance("force_eager"):
        # all of them, whatever the first one shows: processes that compute together would otherwise wait for each other
        findings = [(i, *answer) for i, micro in enumerate(batches) if (answer := _repeat(trainer, task, micro)) is not None]
    _set_random(before, task.device)
    task._tally = tally
    task.zero_grad()
    origin = _earliest(trainer, min(findings, default=None))
    return origin or Origin("the repeated step is finite: the sum over micro-batches or processes overflowed", 0)


def _earliest(trainer: Trainer, found: _Found | None) -> Origin | None:
    """Return the earliest finding of all processes."""
    if trainer.world_size == 1:
        return None if found is None else Origin(found[2], 0)
    everywhere: list[_Found | None] = [None] * trainer.world_size
    torch.distributed.all_gather_object(everywhere, found)
    answers = [(x[0], x[1], process, x[2]) for process, x in enumerate(everywhere) if x is not None]
    if not answers:
        return None
    *_, process, what = min(answers)
    return Origin(f"{what} (process {process})", process)


def _repeat(trainer: Trainer, task: Task, micro: MicroBatch) -> tuple[int, str] | None:
    """Repeat a micro-batch; return the kind and a description of its first non-finite value."""
    forward: list[str] = []
    backward: list[str] = []

    def look(path: str, module: nn.Module, output: Any) -> None:
        for tensor in (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()):
            name = f"{path} ({type(module).__name__})"
            if not forward and (bad := count(tensor)) is not None:
                forward.append(f"the output of {name}: {bad}")
            if tensor.requires_grad:
                tensor.register_hook(partial(look_back, name))  # type: ignore[no-untyped-call]

    def look_back(name: str, gradient: Tensor) -> None:
        if not backward and (bad := count(gradient)) is not None:
            backward.append(f"the gradient of the output of {name}: {bad}")

    _set_random(micro.random, task.device)
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    with ExitStack() as hooks:
        for path, module in task.named_modules():
            if path.startswith("model"):
                hooks.enter_context(module.register_forward_hook(lambda module, _, output, path=path: look(path, module, output)))
        with in_training_step(task):
            loss: Any = trainer.strategy.training_step(micro.batch, micro.number)
        (loss * (1.0 if scaler is None else scaler.get_scale())).backward()
    if forward:
        return _OUTPUT, f"{forward[0]}, in batch {micro.number}"
    if count(loss) is not None:
        return _LOSS, f"the loss itself, {loss.item()}: the model's output is finite, in batch {micro.number}"
    if backward:
        return _GRADIENT, f"{backward[0]}, in batch {micro.number}"
    for name, parameter in task.named_parameters():
        if parameter.grad is not None and (bad := count(parameter.grad)) is not None:
            return _PARAMETER, f"the gradient of the parameter {name}: {bad}, in batch {micro.number}"
    return None


def count(tensor: Tensor) -> str | None:
    """Return a description of the non-finite numbers in a tensor; None if all are finite.

    Example:
        >>> count(torch.tensor([1.0, float("nan"), float("inf")])), count(torch.ones(2))
        ('2 of 3 numbers are not finite (1 nan, 1 inf)', None)
    """
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    bad = int((~own.isfinite()).sum())
    if not bad:
        return None
    nan = int(own.isnan().sum())
    kinds = ", ".join(f"{number:,} {kind}" for number, kind in ((nan, "nan"), (bad - nan, "inf")) if number)
    return f"{bad:,} of {own.numel():,} numbers are not finite ({kinds})"


def _set_random(states: Sequence[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
