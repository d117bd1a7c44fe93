"""Exported models: a safetensors file whose metadata describes the task, so the file alone can rebuild it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, load_model, save_model
from torch import Tensor

from attnkit.checkpoint.description import ARGUMENTS, arguments_of_today, describe, require_readable
from attnkit.checkpoint.errors import CheckpointError, misfit
from attnkit.checkpoint.limits import MAX_CONTAINERS, MAX_JSON, MAX_TENSORS
from attnkit.checkpoint.loading import EXPORTED, load_checkpoint, require_file
from attnkit.checkpoint.rebuilding import build, dtype_of, no_larger_than, rebuild, require_rebuildable, size_of
from attnkit.files import atomic, parse_json
from attnkit.registry import ConfigurationError


def export(path: str | Path, out: str | Path) -> bool:
    """Write the task of a checkpoint as a safetensors file: its weights, and the metadata that rebuilds it, tokenizers included.

    The metadata also hold what the data module has saved, such as the mean and standard deviation of images, under the name of its class.
    If the run averages weights, the file holds the averages, which every command but `attnkit fit` uses.

    Args:
        path: The checkpoint, sharded or not.
        out: The file to write. It appears only when it is complete, and has the read permissions of the checkpoint.

    Returns:
        Whether the weights are averages.

    Raises:
        CheckpointError: The checkpoint cannot be used.
        ConfigurationError: The name of the file does not end in `.safetensors`, by which attnkit and others recognise such files.
    """
    checkpoint = load_checkpoint(path)
    require_exported(out)
    described = {"attnkit": checkpoint["attnkit"], ARGUMENTS: checkpoint[ARGUMENTS], **_data_state(checkpoint)}
    _write(rebuild(checkpoint, path), described, Path(out), Path(path).stat().st_mode)
    return "averaging_state" in checkpoint


def export_task(task: Any, out: str | Path, *, mode: int) -> None:
    """Write a task like `export`; the file gets the read permissions of this mode."""
    require_exported(out)
    arguments = dict(task.hparams)
    _write(task, {"attnkit": describe(task.registered_name, arguments), ARGUMENTS: arguments}, Path(out), mode)


def require_exported(out: str | Path) -> None:
    """Raise unless the name of a file is that of an exported one."""
    if not is_exported(out):
        raise ConfigurationError(f"{out}: attnkit exports weights as safetensors only; choose a file name that ends in {EXPORTED}")
    if Path(out).is_dir():
        raise ConfigurationError(f"{out} is a folder: choose the name of a file")


def _write(task: Any, described: Mapping[str, Any], out: Path, mode: int) -> None:
    with atomic(out) as file:
        try:
            save_model(task, str(file), metadata={"attnkit": json.dumps(described)})
        except SafetensorError as error:  # also of the file system
            raise CheckpointError(f"{out} cannot be written: {error}") from error
        file.chmod(mode & 0o666)  # safetensors makes its files readable by their owner only


def _data_state(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the data module has saved, under Lightning's key, unless the arguments of the task hold all of it, as of tokenizers."""
    key = checkpoint["attnkit"].get("data")
    state = checkpoint.get(key) or {}
    return {key: state} if state.keys() - checkpoint[ARGUMENTS].keys() else {}


def is_exported(path: str | Path) -> bool:
    """Return whether a path has the suffix of the files that `export` writes."""
    return Path(path).suffix == EXPORTED


def load_start(path: str | Path, *, parts: Literal["all", "description"] = "all") -> dict[str, Any]:
    """Return what a new model may start from: the description, the arguments and the weights in a checkpoint or in an exported file.

    `parts` is `all`, or only the `description` with the arguments. Raise a `CheckpointError` if the file cannot be used or rebuilt.
    """
    if is_exported(path):
        weights = {"state_dict": load_exported(path).state_dict()} if parts == "all" else {}
        return {**describe_exported(path), **weights}
    checkpoint = load_checkpoint(path, parts=parts)
    require_rebuildable(checkpoint, path)
    return checkpoint


def load_exported(path: str | Path) -> Any:
    """Return the task in a file that `export` wrote.

    Raises:
        CheckpointError: The file is missing, damaged, not attnkit's or too new, or needs components that are not installed.
    """
    path = Path(path)
    described, weights = describe_exported(path), read_tensors(path)
    task = build(described, path, size_of(weights)).to(dtype_of(weights))
    _fill(task, path)
    return task


def load_exported_into(task: Any, path: str | Path) -> None:
    """Build the model of a task, and fill it with the weights in a file that `export` wrote; raise if they do not fit the model."""
    try:
        with no_larger_than(size_of(read_tensors(Path(path)))):
            task.configure_model()
    except CheckpointError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from error
    _fill(task, Path(path))


def describe_exported(path: str | Path) -> dict[str, Any]:
    """Return the description and the arguments of the task in a file that `export` wrote, or raise like `load_exported`."""
    path = Path(path)
    require_file(path)
    require_modest_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise CheckpointError(f"{path} is truncated or damaged, or not a safetensors file ({error})") from error
    if "attnkit" not in metadata:
        raise CheckpointError(f"{path} is a safetensors file, but `attnkit export` did not write it: it does not describe its model")
    try:
        described: dict[str, Any] = parse_json(metadata["attnkit"], containers=MAX_CONTAINERS)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be used: its metadata cannot be read: {error}") from error
    require_readable(described, path)
    return {**described, ARGUMENTS: arguments_of_today(described[ARGUMENTS])}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the weights in a safetensors file, by their names; raise if it is damaged."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is truncated or damaged, or not a safetensors file ({error})") from error


def _fill(task: Any, path: Path) -> None:
    try:
        load_model(task, path)  # it knows that tied weights are written once
    except RuntimeError as error:
        raise CheckpointError(f"the weights in {path} do not fit this model: {misfit(error)}") from error


def require_modest_header(path: Path) -> None:
    """Raise unless the header of a safetensors file, which is JSON after its length in 8 bytes, is within the limits."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size - 8:
            raise CheckpointError(f"{path} is truncated or damaged, or not a safetensors file")
        try:
            if length > MAX_JSON:
                raise ValueError(f"it has more than {MAX_JSON >> 20} MiB")
            text = file.read(length)
            if text.count(b"data_offsets") > MAX_TENSORS:
                raise ValueError(f"it has more than {MAX_TENSORS:,} tensors")
            header = parse_json(text, containers=MAX_CONTAINERS)
            if not isinstance(header, dict):
                raise ValueError(f"it is a {type(header).__name__}")
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged, or not a safetensors file: its header cannot be read: {error}") from error
