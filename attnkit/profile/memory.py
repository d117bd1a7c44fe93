"""The memory of a training step, estimated by running it on fake tensors."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from attnkit.profile.flops import fake_tensors
from attnkit.registry import ConfigurationError, nearest, optimizers
from attnkit.strategy.preparation import layers
from attnkit.strategy.tensor_parallel import split_maps
from attnkit.task.base import Task
from attnkit.task.masked_lm import MaskedLM
from attnkit.task.parameters import parameter_groups

PRECISIONS: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    "32-true": (torch.float32, None),
    "bf16-mixed": (torch.float32, torch.bfloat16),
    "16-mixed": (torch.float32, torch.float16),
    "bf16-true": (torch.bfloat16, None),
    "16-true": (torch.float16, None),
}
"""The dtype of parameters, and the dtype of matrix products under autocast."""


aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of a training step on a single device."""

    parameters: int  # the parameters; shared ones count once
    layers: Sequence[int]  # the parameters of each layer; all others belong to embeddings, head and final norms
    buffers: int  # tables and other tensors that are not trained
    gradients: int  # the gradients of all trained parameters
    optimizer: int  # the optimizer's state
    forward: int  # peak of the forward pass in addition to all of these: activations for the backward pass, and temporaries
    backward: int  # the same for the backward pass, without the gradients of parameters
    backward_all: int  # peak of the backward pass, with the gradients that exist at that moment
    update: int  # temporaries of the optimizer
    sums: int  # sizes of tensor-parallel all-reduces in both passes: outputs of split modules, and gradients of the inputs of split maps
    made: int  # all tensors that both passes create; each is written once and read at least once

    @property
    def peak(self) -> int:
        """Peak memory from the second step on, in bytes. Lightning frees the old gradients after the forward pass."""
        moments = (self.gradients + self.forward, self.backward_all, self.gradients + self.update)
        return self.parameters + self.buffers + self.optimizer + max(moments)


def step_memory(task: Task, batch: Mapping[str, Any], *, precision: str = "32-true") -> StepMemory:
    """Return the memory of a training step, from shapes alone: no model is allocated, and nothing is computed.

    The task is a new one, without a model, and cannot be used afterwards.

    A forward and a backward pass run on fake tensors, as they would on a CPU. Each tensor counts from its creation until Python and
    autograd release it. Memory within kernels and rounding by the allocator are not included.
    """
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise ConfigurationError(f"there is no estimate for the precision {precision!r}.{nearest(precision, PRECISIONS)} Known: {known}.")
    dtype, autocast = PRECISIONS[precision]
    rows = 0
    if isinstance(task, MaskedLM):
        masked = task.hide(batch, 0, "fit")
        batch, rows = {"tokens": batch["tokens"], "masked": masked}, int(masked.chosen.sum())
    with fake_tensors(dtype) as fake:
        task.is_compiled = False  # fake tensors cannot be compiled; a compiled model needs less memory
        task.configure_model()
        task.train()
        shapes = tree_map(lambda x: _as(fake.from_tensor(x), dtype) if isinstance(x, Tensor) else x, dict(batch))
        return _run(task, shapes, autocast, chosen=rows)


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def _run(task: Task, batch: Any, autocast: torch.dtype | None, *, chosen: int) -> StepMemory:
    parameters = {id(p): p for p in task.parameters()}
    trained = [p for p in parameters.values() if p.requires_grad]
    live = _Live([*parameters.values(), *task.buffers(), *(x for x in tree_leaves(batch) if isinstance(x, Tensor))], chosen=chosen)
    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(live.keep_gradient)  # type: ignore[no-untyped-call]
    sums: list[int] = []
    of_inputs = _count_sums(task.model, sums)
    with live:
        with torch.autocast("cpu", dtype=autocast) if autocast is not None else nullcontext():
            loss = task.objective(batch).loss
        forward, live.peak, live.peak_without = live.peak, 0, 0
        for hook in of_inputs:  # recomputation in the backward pass all-reduces outputs again, but no gradients of inputs
            hook.remove()
        loss.backward()  # type: ignore[no-untyped-call]
    state, largest = optimizer_bytes(task)
    return StepMemory(
        parameters=sum(x.nbytes for x in parameters.values()),
        layers=[sum(p.nbytes for p in layer.parameters()) for layer in layers(task.model)],
        buffers=sum(x.nbytes for x in task.buffers()),
        gradients=sum(x.nbytes for x in trained),
        optimizer=state,
        forward=forward,
        backward=live.peak_without,
        backward_all=live.peak,
        update=largest,
        sums=sum(sums),
        made=live.made,
    )


def _count_sums(model: nn.Module, sums: list[int]) -> list[RemovableHandle]:
    """Make the model append the bytes of each all-reduce of tensor parallelism when called; return the hooks for gradients of inputs."""

    def of_inputs(_: nn.Module, args: tuple[Tensor], __: Tensor) -> None:
        if args[0].requires_grad:
            sums.append(args[0].nbytes)

    def of_output(_: nn.Module, __: tuple[Tensor], output: Tensor) -> None:
        sums.append(output.nbytes)

    parts = [module for module in model.modules() if split_maps(module)]
    for module in parts:
        module.get_submodule("output").register_forward_hook(of_output)
    return [module.get_submodule(name).register_forward_hook(of_inputs) for module in parts for name in split_maps(module)]


def optimizer_bytes(task: Task) -> tuple[int, int]:
    """Return the bytes of the optimizer's state, and of the largest parameter.

    The optimizer takes a real step on a small stand-in for each parameter, and the size of its state is scaled up.
    """
    total, largest = 0, 0
    shares: dict[Any, float] = {}
    for group in parameter_groups(task):
        for parameter in group["params"]:
            kind = (group["matrices"], parameter.ndim, parameter.dtype)
            if kind not in shares:
                shares[kind] = _state_share(task, group, parameter.ndim, parameter.dtype)
            total += round(shares[kind] * parameter.nbytes)
            largest = max(largest, parameter.nbytes)
    return total, largest


def _state_share(task: Task, group: Mapping[str, Any], ndim: int, dtype: torch.dtype) -> float:
    """Return the bytes of optimizer state per byte of a parameter, without scalars."""
    with unset_fake_temporarily():
        parameter = nn.Parameter(torch.zeros([4] * ndim, dtype=dtype))
        parameter.grad = torch.ones_like(parameter)
        optimizer: Optimizer = optimizers.build(task.optimizer, params=[{**group, "params": [parameter]}])
        optimizer.step()
        kept = [x for x in tree_leaves(dict(optimizer.state)) if isinstance(x, Tensor) and x.ndim > 0]
    return sum(x.nbytes for x in kept) / parameter.nbytes


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the bytes of all live tensors that were created in the `with` block, except those `known`.

    Masks that select rows have `chosen` True elements, which shapes alone do not tell.
    """

    def __init__(self, known: Sequence[Tensor], *, chosen: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.chosen = chosen
        self.now = self.made = self.peak = self.gradients = self.peak_without = 0
        self._storages = {x.untyped_storage()._cdata for x in known}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        picks = func.overloadpacket in (aten.index, aten.index_put, aten._index_put_impl_)  # type: ignore[attr-defined]
        made = func(*(self._counted(args) if picks else args), **(kwargs or {}))
        for x in tree_leaves(made):
            if isinstance(x, Tensor):
                self._add(x.untyped_storage())
        return made

    def _counted(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace masks that select rows by `chosen` row numbers."""
        return tuple([number for index in x for number in self._numbers(index)] if isinstance(x, list | tuple) else x for x in args)

    def _numbers(self, index: Any) -> list[Any]:
        is_mask = isinstance(index, Tensor) and index.dtype == torch.bool
        return [index.new_zeros(self.chosen, dtype=torch.long) for _ in range(index.ndim)] if is_mask else [index]

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return
        self._storages.add(key)
        weakref.finalize(storage, self._drop, key, size)
        self.now += size
        self.made += size
        self.peak = max(self.peak, self.now)
        self.peak_without = max(self.peak_without, self.now - self.gradients)

    def _drop(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.now -= size

    def keep_gradient(self, parameter: Tensor) -> None:
        """Count the gradient of a parameter separately."""
        assert parameter.grad is not None
        self.gradients += parameter.grad.nbytes
