"""A task's parameters: their groups in the optimizer, and their names in checkpoints."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from attnkit.head import Head
from attnkit.models import Model
from attnkit.registry import ConfigurationError

COMPILED = "_orig_mod."  # torch.compile inserts it into the names of parameters


FACTOR = "lr_factor"  # key of the factor of a group's learning rate


def parameter_groups(module: nn.Module) -> list[dict[str, Any]]:
    """Return the trainable parameters, in the groups that optimizers treat differently.

    These are hidden matrices (weights of linear maps except the output, marked `"matrices": True` for Muon), other parameters with two or
    more axes, and those without weight decay: biases, norms and other vectors, and the parameters and submodules that a module lists in
    `undecayed`. Each group is split further by the factor of the learning rate (`FACTOR`), if the model's initialisation has one.

    Example:
        >>> layer = nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 3), nn.LayerNorm(3))
        >>> [(len(g["params"]), g["matrices"], g.get("weight_decay")) for g in parameter_groups(layer)]
        [(1, True, None), (1, False, None), (3, False, 0.0)]
    """
    # via `parameters()`, not attributes: if tensor parallelism has split a parameter, the attribute is another tensor
    heads = {id(p) for m in module.modules() if isinstance(m, Head) and m.projection is not None for p in m.projection.parameters()}
    hidden = {id(p) for m in module.modules() if isinstance(m, nn.Linear) for p in m.parameters(recurse=False) if p.ndim == 2} - heads
    undecayed = {
        id(p)
        for m in module.modules()
        if (spared := getattr(m, "undecayed", ()))
        for name, p in m.named_parameters(remove_duplicate=False)
        if name.partition(".")[0] in spared
    }
    factors = {
        f"{path}.{name}".removeprefix("."): factor
        for path, part in module.named_modules()
        if isinstance(part, Model)
        for name, factor in part.learning_rates.items()
    }
    groups: dict[tuple[bool, bool, float], dict[str, Any]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim >= 2 and not name.endswith("bias") and id(parameter) not in undecayed
            is_matrix, factor = id(parameter) in hidden, factors.get(name.replace(COMPILED, ""), 1.0)
            group: dict[str, Any] = {"params": [], "matrices": is_matrix}
            group |= ({} if decays else {"weight_decay": 0.0}) | ({} if factor == 1.0 else {FACTOR: factor})
            groups.setdefault((not is_matrix, not decays, -factor), group)["params"].append(parameter)
    return [groups[key] for key in sorted(groups)]


def fuse(optimizer: torch.optim.Optimizer) -> None:
    """Make torch's Adam and AdamW update parameters in one fused call, unless the spec chooses another implementation.

    torch's default on a CPU is a loop of about twelve operations per parameter, up to a tenth of the step of a small model; on a GPU, it is
    the same operations over lists of parameters, each of which reads and writes all of them. Results are the same up to rounding. The
    option is set per group: as a constructor argument, it would make Lightning refuse to clip gradients.

    Example:
        >>> optimizer = torch.optim.AdamW(nn.Linear(2, 3).parameters())
        >>> fuse(optimizer)
        >>> optimizer.param_groups[0]["fused"]
        True
    """
    groups = optimizer.param_groups
    is_default = type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and not any(
        group["fused"] is not None or group["foreach"] is not None or group["capturable"] or group["differentiable"] for group in groups
    )
    parameters = [p for group in groups for p in group["params"]]
    devices = {p.device for p in parameters}
    has_fused_steps = len(devices) == 1 and devices.pop().type in ("cpu", "cuda")
    # sharded parameters are of type DTensor
    if is_default and has_fused_steps and all(type(p) is nn.Parameter and p.is_floating_point() for p in parameters):
        for group in groups:
            group["fused"] = True


def require_usable_state(new: Mapping[str, Any], old: Mapping[str, Any]) -> None:
    """Raise a `ConfigurationError` if the optimizer `new` cannot continue with the state of `old`; both are resolved specs.

    Example:
        >>> require_usable_state({"name": "adam", "amsgrad": False}, {"name": "adamw", "amsgrad": False})
    """
    name, before = new["name"], old["name"]
    has_no_state = name == "sgd" and not new.get("momentum") and "weight_decay" in old  # else its parameters are in other groups
    is_same = name == before or {name, before} == {"adam", "adamw"} or has_no_state
    switches = ("amsgrad", "centered", "momentum") if name == "rmsprop" else ("amsgrad",)
    added = [switch for switch in switches if is_same and new.get(switch) and not old.get(switch)]
    if not is_same or added:
        wanted = "".join(f" with {switch}={new[switch]}" for switch in added)
        raise ConfigurationError(
            f"model.optimizer: {name}{wanted} cannot continue with the state of {before} in the checkpoint: keep {before}"
            f"{' as it was' if added else ''}, or start a new run from its weights with model.init_from"
        )


def place_steps(optimizer: torch.optim.Optimizer) -> None:
    """Move the step counts of a fused Adam to its parameters' device: checkpoints of other implementations have them on the CPU."""
    for group in optimizer.param_groups:
        for p in group["params"] if group.get("fused") else ():
            state = optimizer.state.get(p, {})
            if isinstance(step := state.get("step"), Tensor):
                state["step"] = step.to(p.device)


def write_plain_names(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any]) -> None:
    """Write the weights of compiled modules under their names without torch.compile."""
    for name in [n for n in state_dict if n.startswith(prefix) and COMPILED in n]:
        state_dict[name.replace(COMPILED, "")] = state_dict.pop(name)


def read_any_names(module: nn.Module, state_dict: dict[str, Any], prefix: str) -> None:
    """Rename weights to the names in this module, whether or not it or the saved module is compiled."""
    write_plain_names(module, state_dict, prefix, {})
    tensors = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    for name in [n for n, _ in tensors if COMPILED in n]:
        if (plain := prefix + name.replace(COMPILED, "")) in state_dict:
            state_dict[prefix + name] = state_dict.pop(plain)
