"""Where the first number that is not finite came from: the step is made once more, with hooks in every module."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from attnkit.task import Task


class Seen(NamedTuple):
    """A micro-batch as a step saw it: its number in the epoch, and the states of the generators before it."""

    number: int
    batch: Any
    random: tuple[Tensor, ...]


def random_state(device: torch.device) -> tuple[Tensor, ...]:
    """Return the states of torch's generators that a model on `device` draws from."""
    return (torch.get_rng_state(), *((torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()))


# What is found, from cause to effect: processes have sums of gradients in common, so a parameter's says least about where it began.
_OUTPUT, _LOSS, _GRADIENT, _PARAMETER = range(4)
_Found = tuple[int, int, str]  # the micro-batch, which of these, and in words


class Origin(NamedTuple):
    """What was not finite first, and the process where it was."""

    what: str
    process: int


def first_not_finite(trainer: Trainer, task: Task, batches: Sequence[Seen]) -> Origin:
    """Return what was not finite first: a parameter, the output of a module, or the gradient of one.

    The step is computed again from the same parameters, micro-batches and dropout, without torch.compile. Gradients are cleared; parameters
    and the random states stay as they are. With several processes, all must call it, and all get the same answer; a number that is not
    finite reaches the gradients of all of them, so the process counts where it was an output.

    Args:
        trainer: The trainer; its precision is used.
        task: The task.
        batches: All micro-batches of the step.
    """
    bad = ((name, count(parameter)) for name, parameter in task.named_parameters())
    found = next(((0, _PARAMETER, f"the parameter {name}: {what}; an earlier step made it so") for name, what in bad if what), None)
    if (origin := _earliest(trainer, found)) is not None:
        return origin
    before, tally = random_state(task.device), task._tally.clone()
    task.zero_grad()
    with torch.compiler.set_stance("force_eager"):
        # all of them, whatever the first shows: processes compute together, and would wait for each other
        seconds = [(i, *answer) for i, seen in enumerate(batches) if (answer := _repeat(trainer, task, seen)) is not None]
    _set_random(before, task.device)
    task._tally = tally
    task.zero_grad()
    origin = _earliest(trainer, min(seconds, default=None))
    return origin or Origin("the step was made again, and all was finite: the sum over steps or processes overflowed", 0)


def _earliest(trainer: Trainer, found: _Found | None) -> Origin | None:
    """Return what was first of that which any process has found."""
    if trainer.world_size == 1:
        return None if found is None else Origin(found[2], 0)
    everywhere: list[_Found | None] = [None] * trainer.world_size
    torch.distributed.all_gather_object(everywhere, found)
    answers = [(x[0], x[1], process, x[2]) for process, x in enumerate(everywhere) if x is not None]
    if not answers:
        return None
    *_, process, what = min(answers)
    return Origin(f"{what} (process {process})", process)


def _repeat(trainer: Trainer, task: Task, seen: Seen) -> tuple[int, str] | None:
    """Compute a micro-batch again; return what was not finite first, and of which kind that is."""
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

    handles = [
        module.register_forward_hook(lambda module, _, output, path=path: look(path, module, output))
        for path, module in task.named_modules()
        if path.startswith("model")
    ]
    _set_random(seen.random, task.device)
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    try:
        loss: Any = trainer.strategy.training_step(seen.batch, seen.number)
        (loss * (1.0 if scaler is None else scaler.get_scale())).backward()
    finally:
        for handle in handles:
            handle.remove()
    if forward:
        return _OUTPUT, f"{forward[0]}, in batch {seen.number}"
    if count(loss) is not None:
        return _LOSS, f"the loss itself, {loss.item()}: the model's output is finite, in batch {seen.number}"
    if backward:
        return _GRADIENT, f"{backward[0]}, in batch {seen.number}"
    for name, parameter in task.named_parameters():
        if parameter.grad is not None and (bad := count(parameter.grad)) is not None:
            return _PARAMETER, f"the gradient of the parameter {name}: {bad}, in batch {seen.number}"
    return None


def count(tensor: Tensor) -> str | None:
    """Return how many numbers of a tensor are not finite, in words; None if all are.

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
