"""Prepares a model for training, in this order: activation checkpointing, compilation, tensor parallelism, sharding.

No step changes the name of a parameter, so checkpoints do not depend on how a model was trained.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from attnkit import draws
from attnkit.feed_forward import FeedForward
from attnkit.layers import ContextDecoder, RecurrentLayer, TransformerLayer
from attnkit.mixer import Mixer
from attnkit.registry import ConfigurationError
from attnkit.state import State, tensors_in
from attnkit.strategy.tensor_parallel import split_layers

ActivationCheckpointing = Literal["none", "layer", "mixer", "feed_forward"]

LAYERS = (TransformerLayer, RecurrentLayer, ContextDecoder)

_OTHER_METHODS: dict[type[nn.Module], str] = {TransformerLayer: "remember", ContextDecoder: "start"}

_RECOMPUTED: dict[ActivationCheckpointing, tuple[type[nn.Module], ...]] = {
    "none": (),
    "layer": LAYERS,
    "mixer": (Mixer,),
    "feed_forward": (FeedForward,),
}


def layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a model from input to output, but not those nested in another layer.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(stack="encoder", d_model=8, num_layers=3, num_heads=2, vocab_size=9)
        >>> len(list(layers(model)))
        3
    """
    for child in model.children():
        if isinstance(child, LAYERS):
            yield child
        else:
            yield from layers(child)


def check_preparation(model: nn.Module, *, activation_checkpointing: ActivationCheckpointing, compile: bool) -> None:
    """Raise if a policy has nothing to recompute or would recompute parts of compiled layers, or if there is nothing to compile."""
    policy = activation_checkpointing
    if policy != "none" and not any(isinstance(module, _RECOMPUTED[policy]) for module in model.modules()):
        raise ConfigurationError(
            f"activation_checkpointing {policy!r} has nothing to recompute: the model has no {policy.replace('_', '-')}. "
            f"Use 'layer' or 'none'."
        )
    if compile and not any(True for _ in layers(model)):
        raise ConfigurationError("compile has no effect, because the model has no layers; set it to false")
    if compile and policy not in ("none", "layer"):
        raise ConfigurationError(
            f"compile does not work with activation_checkpointing {policy!r}: each layer would need its own graph, and torch compiles at "
            f"most eight. Use 'layer' or 'none', or set compile to false."
        )


def compile_layers(model: nn.Module, *, recompute: bool = False) -> None:
    """Compile each layer with torch.compile for training: layers of one type share one graph for all batch sizes and lengths.

    In evaluation mode they run uncompiled: generation, with one-token steps and growing caches, would have to wait for further graphs.
    If activations are recomputed, that happens inside the graph.
    """
    compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
    for layer in layers(model):
        run = _recompute if recompute else type(layer).forward
        if run not in compiled:
            # under DDP, torch would split a layer's graph wherever a gradient bucket is full, even inside attention
            compiled[run] = torch._dynamo.config.patch(optimize_ddp=False)(torch.compile(run, dynamic=True))
        layer.forward = partial(_run, layer, compiled[run])  # hooks stay outside, since FSDP2's cannot be compiled


def _run(layer: nn.Module, compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return (compiled if layer.training else type(layer).forward)(layer, *args, **kwargs)


def _recompute(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return checkpoint(type(layer).forward, layer, *args, use_reentrant=False, **kwargs)


def _same_random_numbers() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a forward pass and its recomputation: a layer used several times has different keys each time."""
    return nullcontext(), draws.using(draws.current())


def prepare(model: nn.Module, *, activation_checkpointing: ActivationCheckpointing, compile: bool) -> None:
    """Make modules recompute their activations in the backward pass, with the same dropout, and compile layers; raise if it is impossible.

    `layer` keeps only the inputs of layers, for a third more computation; `mixer` recomputes logits and weights, which grow with the square
    of the length; `feed_forward` recomputes the hidden activations.
    """
    policy = activation_checkpointing
    check_preparation(model, activation_checkpointing=policy, compile=compile)
    for module in list(layers(model) if policy == "layer" else model.modules()):
        if isinstance(module, _RECOMPUTED[policy]):
            # replacing `forward` keeps hooks and names
            module.forward = partial(checkpoint, module.forward, use_reentrant=False, context_fn=_same_random_numbers)
    if compile:
        compile_layers(model, recompute=policy == "layer")


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split the layers of a model over `mesh["tensor_parallel"]`, and shard all parameters over `mesh["data_parallel"]` (FSDP2).

    All processes get the parameters of the first. A layer is gathered while it computes, and everything else (embeddings, the head, final
    norms) for the whole step, so a tied table stays one tensor, which gets both halves of its gradient.

    Args:
        model: The model; changed in place, unless it is parallel already.
        mesh: A mesh of these two dimensions, as made by `FSDP2` and Lightning's `ModelParallelStrategy`.

    Raises:
        ConfigurationError: A layer cannot be split, or is compiled.
    """
    if isinstance(model, FSDPModule) or any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return  # an FSDPModule's gathered parameters are plain tensors
    data, tensor = mesh["data_parallel"], mesh["tensor_parallel"]
    for weights in (*model.parameters(), *model.buffers()):
        copy = weights.detach().to(mesh.device_type)
        torch.distributed.broadcast(copy, src=0)
        weights.detach().copy_(copy)
    if tensor.size() > 1:
        if any(isinstance(layer.forward, partial) and layer.forward.func is _run for layer in layers(model)):
            raise ConfigurationError(
                "tensor parallelism does not support compiled layers; set model.compile to false, or use strategy fsdp2"
            )
        split_layers(model, list(layers(model)), tensor)
    if data.size() > 1 or tensor.size() == 1:
        # keys and values are views, but never written to
        warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view tensor")
        for layer in layers(model):
            fully_shard(layer, mesh=data, reshard_after_forward=True)
            for kind, method in _OTHER_METHODS.items():
                if isinstance(layer, kind):
                    register_fsdp_forward_method(layer, method)
                    setattr(layer, method, _gathers_before_backward(layer, getattr(layer, method)))
        fully_shard(model, mesh=data, reshard_after_forward=False)


def _gathers_before_backward(layer: nn.Module, method: Callable[..., State]) -> Callable[..., State]:
    """Wrap a method to gather the layer when a gradient of its state arrives: FSDP2 before torch 2.13 ignores dataclasses."""

    def run(*arguments: Any) -> State:
        assert isinstance(layer, FSDPModule)
        state = method(*arguments)
        for tensor in tensors_in(state):
            if tensor.requires_grad:
                tensor.register_hook(layer._get_fsdp_state()._pre_backward)  # type: ignore[no-untyped-call]
        return state

    return run


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Gather all parameters inside the `with` block, where any method of the model then runs without the other processes.

    (Processes of a tensor-parallel group still compute split layers together.)

    Example:
        >>> with gathered(nn.Linear(2, 2)):  # not sharded: nothing to do
        ...     pass
    """
    gather(model)
    try:
        yield
    finally:
        release(model)


def gather(model: nn.Module) -> None:
    """Gather all parameters until `release`."""
    for i, part in enumerate(_sharded(model)):
        if i == 0:  # else the first layer to be called would become the root
            part._get_fsdp_state()._lazy_init()
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()


def release(model: nn.Module) -> None:
    """Free the gathered parameters, leaving each process its own shard."""
    for i, part in enumerate(_sharded(model)):
        part.reshard()
        part.set_reshard_after_forward(i > 0, recurse=False)


def _sharded(model: nn.Module) -> Iterator[FSDPModule]:
    """Yield the modules that FSDP2 shards, root first."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))
