# https://arxiv.org/abs/1909.08053
"""Tensor parallelism: every process has some of the heads, and some of the hidden units, of each Transformer layer.

As in Megatron-LM (Shoeybi et al. 2019), a layer sums over processes twice: after the attention and after the feed-forward part. Every
process computes everything else itself, such as norms, embeddings and the head, with identical results.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from attnkit.attention import Attention, FiniteBias, LazyBias
from attnkit.dropout import Dropout
from attnkit.feed_forward import FeedForward
from attnkit.layers import TransformerLayer
from attnkit.mixer import Mixer
from attnkit.mixer.memory_keys import MemoryKeys
from attnkit.norm import Norm
from attnkit.norm.none import NoNorm
from attnkit.normalizer import Normalizer
from attnkit.position import Position
from attnkit.registry import ConfigurationError, mixers


def split_maps(module: nn.Module) -> list[str]:
    """Return the names of a module's own linear maps whose outputs are split; none if every process computes the whole module."""
    return [name for name in module.splits if getattr(module, name) is not None] if isinstance(module, Mixer | FeedForward) else []


def check_splittable(layers: Iterable[nn.Module], size: int) -> None:
    """Raise unless layers can be split over `size` processes.

    They cannot if one is recurrent, if a count is not a multiple of `size`, if heads share a score's or norm's parameter, or if there is
    nothing to split.

    Example:
        >>> check_splittable([TransformerLayer(d_model=8, num_heads=2)], 4)
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: tensor parallelism over 4 processes needs num_heads to be a multiple of 4, but it is 2
    """
    layers = list(layers)
    for layer in layers:
        if not isinstance(layer, TransformerLayer):
            raise ConfigurationError(
                f"tensor parallelism splits the heads of Transformer layers, but this stack has a {type(layer).__name__}: each step "
                f"needs the whole previous recurrent state, so its parts cannot be computed separately. Use strategy fsdp2 or ddp."
            )
        for module in layer.modules():
            if isinstance(module, Attention):
                _check_counts(size, num_heads=module.num_heads, num_kv_heads=module.num_kv_heads)
                _reject_shared(module, [n for n, p in module.named_parameters() if _is_shared(n, p, module)])
            elif isinstance(module, Mixer) and module.splits:
                by_head = [name for name, part in module.named_children() if isinstance(part, Attention | MemoryKeys)]
                _reject_shared(module, _unsplit_parameters(module, by_head))
                _reject_norms(module)
            elif split_maps(module):
                _check_counts(size, ffn_dim=cast(nn.Linear, module.output).in_features)
                _reject_shared(module, _unsplit_parameters(module), "hidden units")
                _reject_norms(module, "hidden units")
    if not any(split_maps(module) for layer in layers for module in layer.modules()):
        unsplit = sorted({mixers.name_of(type(layer.mixer)) for layer in layers if isinstance(layer, TransformerLayer)})
        raise ConfigurationError(
            f"tensor parallelism has nothing to split: no feed-forward network can be split, and every process computes the mixers "
            f"{', '.join(unsplit)} in full. Use strategy fsdp2 or ddp."
        )


def split_layers(model: nn.Module, layers: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Split layers of a model over a one-dimensional mesh; every process keeps all other parts whole.

    All parameters become DTensors on the mesh, so that one optimizer and one gradient norm handle all of them. They must be equal in all
    processes. Raises like `check_splittable`.
    """
    layers = list(layers)
    check_splittable(layers, mesh.size())
    for module in model.modules():
        if isinstance(module, Position) and module.reads_queries:
            _reject_shared(module, [name for name, _ in module.named_parameters()])
    for layer in layers:
        for module in layer.modules():
            if maps := split_maps(module):
                styles: dict[str, ParallelStyle] = dict.fromkeys(maps, ColwiseParallel())
                parallelize_module(module, mesh, {**styles, "output": RowwiseParallel()}, src_data_rank=None)
                _offset_dropout(module, mesh)
            if maps and isinstance(module, Mixer):
                module.register_forward_pre_hook(partial(_with_local_heads, mesh))
    shared: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        _distribute(module, mesh, Shard(0) if isinstance(module, Attention | Normalizer | MemoryKeys) else Replicate(), shared)


def _offset_dropout(module: nn.Module, mesh: DeviceMesh) -> None:
    """Tell dropout which heads or hidden units this process has, so that it drops the same elements as in a single process."""
    if isinstance(module, Mixer):
        for attention in (part for part in module.modules() if isinstance(part, Attention)):
            attention.first_head = mesh.get_local_rank() * (attention.num_heads // mesh.size())
    else:
        width = cast(nn.Linear, module.output).in_features
        cast(Dropout, module.dropout).first = mesh.get_local_rank() * (width // mesh.size())


def _with_local_heads(mesh: DeviceMesh, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Select this process's heads from the mask and the bias of all heads."""
    x, tokens, *state = args
    mask, bias = tokens.mask, tokens.bias
    if mask is not None and mask.allowed is not None:
        mask = replace(mask, allowed=_local_heads(mask.allowed, mesh), alive=None if mask.alive is None else _local_heads(mask.alive, mesh))
    if isinstance(bias, FiniteBias | LazyBias):
        bias = FiniteBias(_local_heads(bias.values, mesh))
    elif isinstance(bias, Tensor):
        bias = _local_heads(bias, mesh)
    return (x, replace(tokens, mask=mask, bias=bias), *state)


def _local_heads(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return this process's heads of `x`, broadcastable to [B, H, Q, K]; the backward pass gathers the gradient."""
    if x.dim() < 3 or x.shape[-3] == 1:
        return x
    return DTensor.from_local(x, mesh, [Replicate()]).redistribute(placements=[Shard(x.dim() - 3)]).to_local()


def _distribute(module: nn.Module, mesh: DeviceMesh, placement: Placement, shared: dict[nn.Parameter, nn.Parameter]) -> None:
    """Make the module's own parameters DTensors on the mesh; the module still sees the local parts as plain tensors."""
    plain = {name: p for name, p in module.named_parameters(recurse=False) if not isinstance(p, DTensor)}
    for name, parameter in plain.items():
        if parameter not in shared:
            shared[parameter] = nn.Parameter(
                distribute_tensor(parameter.data, mesh, [placement], src_data_rank=None), requires_grad=parameter.requires_grad
            )
        module.register_parameter(name, shared[parameter])
    if plain:
        kind = type(module)
        module.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, **{name: _local_property(name) for name in plain}})


def _local_property(name: str) -> property:
    def local(module: nn.Module) -> Tensor | None:
        parameter = module._parameters[name]
        # FSDP2's tensors, on two mesh dimensions, must stay as they are here; nothing computes with them
        return parameter.to_local() if isinstance(parameter, DTensor) and parameter.device_mesh.ndim == 1 else parameter

    return property(local)


def _is_shared(name: str, parameter: Tensor, attention: Attention) -> bool:
    own = name.removeprefix("normalizer.")  # scores and normalizers have parameters per head; other modules in a score do not
    return "." in own or parameter.shape[0] not in (attention.num_heads, attention.num_kv_heads)


def _unsplit_parameters(module: nn.Module, parts: Iterable[str] = ()) -> list[str]:
    """Return the names of parameters outside the linear maps and `parts`, which each process has its own slice of."""
    own = {*split_maps(module), "output", *parts}
    return [name for name, _ in module.named_parameters() if name.partition(".")[0] not in own]


def _reject_shared(module: nn.Module, names: list[str], units: str = "heads") -> None:
    if names:
        raise ConfigurationError(
            f"tensor parallelism gives each process some of the {units}, but the {units} of {type(module).__name__} share the parameter "
            f"{names[0]!r}; use strategy fsdp2 or ddp"
        )


def _reject_norms(module: nn.Module, units: str = "heads") -> None:
    """Raise if a norm without parameters spans all heads or all hidden units, since a process has only some of them."""
    by_head = ("query_norm", "key_norm") if getattr(module, "norms_heads", False) else ()
    for name, part in module.named_children():
        if isinstance(part, Norm) and not isinstance(part, NoNorm) and name not in by_head:
            raise ConfigurationError(
                f"tensor parallelism gives each process some of the {units}, but {name!r} of {type(module).__name__} normalises "
                f"all of them together; use strategy fsdp2 or ddp"
            )


def _check_counts(size: int, **counts: int) -> None:
    for name, count in counts.items():
        if count % size:
            raise ConfigurationError(f"tensor parallelism over {size} processes needs {name} to be a multiple of {size}, but it is {count}")
