"""Rebuilds a task from its checkpoint alone: the arguments describe the model, and the weights fill it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_buffer_registration_hook, register_module_parameter_registration_hook

from attnkit import __version__
from attnkit.checkpoint.description import ARGUMENTS, is_of_own_class
from attnkit.checkpoint.errors import REAL, CheckpointError, misfit
from attnkit.checkpoint.shards import StoredSize, is_sharded_checkpoint, stored_size
from attnkit.registry import ConfigurationError, importing, tasks


def rebuild(checkpoint: Mapping[str, Any], source: str | Path) -> Any:
    """Return the task of a loaded checkpoint, with its weights; raise if they do not fit. `source` names the checkpoint in errors."""
    weights = _weights(checkpoint, source)
    task = build(checkpoint, source, size_of(weights)).to(dtype_of(weights))
    try:
        task.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"the weights in {source} do not fit the model that it describes: {misfit(error)}") from error
    return task


def require_rebuildable(checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Raise unless the task of the checkpoint at `path` can be built and is not far larger than its weights; this takes no memory.

    For a sharded checkpoint, `checkpoint` may be the description alone. The shapes of weights are not compared.
    """
    path = Path(path)
    size = stored_size(path) if is_sharded_checkpoint(path) else size_of(_weights(checkpoint, path))
    with torch.device("meta"):
        build(checkpoint, path, size)


def build(checkpoint: Mapping[str, Any], source: str | Path, size: StoredSize) -> Any:
    """Return the task that a checkpoint describes, without its weights; raise if it is far larger than `size`, the weights' size."""
    written = checkpoint["attnkit"]
    if is_of_own_class(checkpoint):
        raise CheckpointError(f"{source} holds {written['task']}, a user's own LightningModule: use its load_from_checkpoint")
    try:
        with importing(False), no_larger_than(size):
            task: Any = tasks.build({"name": written["task"], **checkpoint[ARGUMENTS]})
        with importing(False), no_larger_than(size):
            task.configure_model()
    except CheckpointError as error:
        raise CheckpointError(f"{source} cannot be used: {error}") from error
    except Exception as error:  # meaningless arguments of the right types may fail in any way
        reason = str(error) if isinstance(error, ConfigurationError) else str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{source}, written by attnkit {written['version']}, cannot be rebuilt by {__version__}: {reason}") from error
    return task


def size_of(weights: Mapping[str, Tensor]) -> StoredSize:
    """Return the size of weights, where views of the same numbers count once."""
    storages = {w.untyped_storage().data_ptr(): w.untyped_storage().nbytes() // w.element_size() for w in weights.values()}
    return StoredSize(len(weights), sum(storages.values()))


def dtype_of(weights: Mapping[str, Tensor]) -> torch.dtype:
    """Return the precision of weights; where they differ, the one that holds all of them.

    Example:
        >>> dtype_of({"a": torch.ones(1).bfloat16(), "b": torch.ones(1)})
        torch.float32
    """
    found = {w.dtype for w in weights.values() if w.dtype in REAL}
    return reduce(torch.promote_types, found) if found else torch.get_default_dtype()


def _weights(checkpoint: Mapping[str, Any], source: str | Path) -> Mapping[str, Tensor]:
    weights = checkpoint.get("state_dict")
    if not isinstance(weights, Mapping) or not all(isinstance(w, Tensor) and isinstance(name, str) for name, w in weights.items()):
        raise CheckpointError(f"{source} is not an attnkit checkpoint: its state_dict holds more than named tensors")
    return weights


@contextmanager
def no_larger_than(size: StoredSize) -> Iterator[None]:
    """Raise as soon as the modules that are built have far more parameters and buffers than a checkpoint holds."""
    left = [4 * size.tensors + 16, 4 * size.elements + 2**20]  # tied weights count each time, and not all buffers are stored

    def count(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        if tensor is not None:
            left[0] -= 1
            left[1] -= tensor.numel()
        if min(left) < 0:
            raise CheckpointError(
                f"it describes a far larger model than the {size.tensors:,} tensors of {size.elements:,} elements that it holds"
            )

    with register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count):
        yield
