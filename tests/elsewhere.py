"""A fake device that shows on a CPU what would fail on a GPU: its tensors compute on the CPU, but must not be mixed with CPU tensors."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "meta"  # the device type that the tensors report; torch differentiates it without a GPU
MOVES = ("_to_copy", "copy_")
INDEXES = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")  # these also take CPU indices


class Elsewhere(Tensor):
    """A tensor on the fake device, with the data of `inner`."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Elsewhere":
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype, "layout": inner.layout}
        made: Elsewhere = Tensor._make_wrapper_subclass(cls, inner.size(), **layout, device=torch.device(NAME))
        return made

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"Elsewhere({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})


def _computed(function: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Compute on the CPU; raise if the devices of tensors are mixed, except for zero-dimensional ones."""
    name, target = function.overloadpacket.__name__, kwargs.get("device")
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = [x for x in tensors if isinstance(x, Elsewhere)]
    is_index = name in INDEXES and isinstance(args[0], Elsewhere)
    if there and name not in MOVES and not is_index and any(x.ndim for x in tensors if not isinstance(x, Elsewhere)):
        raise RuntimeError(f"{function} has tensors on two devices: {[(type(x).__name__, tuple(x.shape)) for x in tensors]}")
    given = {**kwargs, "device": torch.device("cpu")} if target is not None else kwargs
    found = function(*tree_map(here, args), **tree_map(here, given))
    is_there = torch.device(target).type == NAME if target is not None else isinstance(args[0], Elsewhere) if name in MOVES else bool(there)
    if not is_there:
        return found
    known = {id(here(x)): x for x in tensors}
    return tree_map(lambda x: known.get(id(x)) if id(x) in known else Elsewhere(x) if isinstance(x, Tensor) else x, found)


def here(x: Any) -> Any:
    """Return a tensor's data on the CPU; anything else unchanged."""
    return x.inner if isinstance(x, Elsewhere) else x


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})


class _Lists(TorchFunctionMode):
    """Intercepts conversions from and to lists, which are not dispatched."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and torch.device(given.get("device") or "cpu").type == NAME:
            return function(*args, **{k: v for k, v in given.items() if k != "device"}).to(NAME)
        if function is Tensor.new_tensor and isinstance(args[0], Elsewhere):
            return torch.tensor(args[1], dtype=given.get("dtype", args[0].dtype)).to(NAME)
        if function is Tensor.tolist and isinstance(args[0], Elsewhere):
            return args[0].inner.tolist()
        return function(*args, **given)


@contextmanager
def elsewhere() -> Iterator[None]:
    """Register the device inside the `with` block, with the CPU's autocast."""
    is_enabled, autocast = torch.is_autocast_enabled, torch.autocast

    class Autocast(autocast):  # type: ignore[misc, valid-type]
        def __init__(self, device: str, *args: Any, **kwargs: Any) -> None:
            super().__init__("cpu" if device == NAME else device, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, _Operations(), _Lists():
        patch.setattr(torch, "is_autocast_enabled", lambda device=None: is_enabled("cpu" if device in (None, NAME) else device))
        patch.setattr(torch, "autocast", Autocast)
        yield


def move(model: nn.Module) -> None:
    """Move a model to the device; shared parameters stay shared."""
    moved: dict[int, Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    other = Elsewhere(tensor.detach().clone())
                    whole = nn.Parameter(other, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else other
                    tensors[name] = moved.setdefault(id(tensor), whole)  # type: ignore[assignment]
