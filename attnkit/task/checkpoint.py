"""Checkpoints: plain data and tensors, from which a task is rebuilt.

An attnkit checkpoint is a Lightning checkpoint with the key `attnkit`: `format` (of this layout), `version` (of attnkit), `task` (its
registry name) and `packages` (who provides the components that are not attnkit's own). The task's arguments lie in
`hyper_parameters`. An exported file is a safetensors file with the same two in its metadata.
"""

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.pytorch.plugins import TorchCheckpointIO
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, load_model, save_model
from torch import Tensor
from torch.nn.modules.module import register_module_buffer_registration_hook, register_module_parameter_registration_hook
from typing_extensions import override

from attnkit import __version__
from attnkit.archive import MAX_CONTAINERS, MAX_JSON, ArchiveError, ForeignError, check_archive, read_archive
from attnkit.files import atomic, parse_json
from attnkit.registry import IMPORTS, ConfigurationError, Registry, Spec, import_modules, importing, module_names, nearest, tasks
from attnkit.strategy import is_sharded_checkpoint, read_rest, read_sharded, require_whole

if TYPE_CHECKING:
    from attnkit.task.base import Task

FORMAT = 1
MAX_TENSORS = 100_000  # of a safetensors file
ARGUMENTS = "hyper_parameters"  # Lightning's key
RECIPE_STATE = "attnkit_recipe"
"""Key of the recipe among the states of callbacks."""


class CheckpointError(ConfigurationError):
    """A checkpoint that cannot be used: the message says what is wrong with it and what to do."""


class MissingComponentError(CheckpointError):
    """A good checkpoint whose model needs something that is not here."""


def load_checkpoint(path: str | Path, *, parts: Literal["all", "description"] = "all", trust: bool = False) -> dict[str, Any]:
    """Read a checkpoint on the CPU, with `weights_only=True`: a file, or the folder of a sharded one, whose parts are put together.

    Args:
        path: The file or folder.
        parts: `description`: weights and optimizers are not needed, and are left out of a sharded one, which may not fit into memory.
        trust: Whether a class path in it may have its module imported, which runs the module's code.

    Raises:
        CheckpointError: It is missing, cut short or damaged, not attnkit's, or written by a newer attnkit.
        MissingComponentError: A component in it is not installed, or is a class of a module that is not imported.
    """
    path = Path(path)
    if is_sharded_checkpoint(path):
        try:
            sharded = (read_sharded if parts == "all" else read_rest)(path)
        except ConfigurationError as error:
            raise CheckpointError(str(error)) from error
        require_readable(sharded, path, trust=trust)
        return sharded
    checkpoint = _read_file(path)
    require_readable(checkpoint, path, trust=trust)
    return dict(checkpoint)


def _read_file(path: Path) -> Any:
    """Return what is in a checkpoint file, whoever wrote it.

    Raises:
        CheckpointError: It is missing or damaged, holds more than plain data and tensors, or goes beyond a limit.
    """
    _require_file(path)
    if not zipfile.is_zipfile(path):  # torch.save writes a zip file, whose directory is at its end
        with path.open("rb") as file:
            if file.read(2) == b"PK":
                raise CheckpointError(f"{path} is cut short or damaged ({path.stat().st_size:,} bytes): use an earlier checkpoint")
        raise CheckpointError(f"{path} is not an attnkit checkpoint; those are written by `attnkit fit`")
    try:
        return read_archive(path)
    except ForeignError as error:
        raise CheckpointError(
            f"{path} is not an attnkit checkpoint: it holds more than plain data and tensors, and was not read ({error})"
        ) from error
    except ArchiveError as error:
        raise CheckpointError(f"{path} is damaged, or is no checkpoint ({error})") from error


def require_undamaged(path: str | Path) -> dict[str, Any]:
    """Read all of a checkpoint and compare its checksums, which torch does not when it reads tensors.

    Returns:
        Its description, as that of `load_checkpoint`.

    Raises:
        CheckpointError: It is cut short or damaged, or cannot be used for another reason.
    """
    path = Path(path)
    description = load_checkpoint(path, parts="description")
    try:
        if is_sharded_checkpoint(path):
            require_whole(path)
            return description
    except ConfigurationError as error:
        raise CheckpointError(str(error)) from error
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise CheckpointError(f"{path} is damaged: the checksum of {damaged} is wrong")
    return description


def rebuild(checkpoint: Mapping[str, Any], source: str | Path) -> "Task":
    """Return the task of a loaded checkpoint, with its weights; `source` names the checkpoint in errors.

    Raises:
        CheckpointError: Its arguments or weights do not fit this version of attnkit, or describe a larger model than the weights.
    """
    if is_of_own_class(checkpoint):
        raise CheckpointError(
            f"{source} holds {checkpoint['attnkit']['task']}, a LightningModule of its author's: use that class's load_from_checkpoint"
        )
    weights = _weights(checkpoint, source)
    task = _build(checkpoint["attnkit"], checkpoint[ARGUMENTS], source, weights)
    try:
        task.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"the weights in {source} do not fit the model that it describes: {error}") from error
    return task


def require_rebuildable(checkpoint: Mapping[str, Any], source: str | Path) -> None:
    """Raise unless the task of a loaded checkpoint can be built, without memory, and is no larger than its weights.

    Raises:
        CheckpointError: As `rebuild`, but for weights of other shapes.
    """
    with torch.device("meta"):
        _build(checkpoint["attnkit"], checkpoint[ARGUMENTS], source, _weights(checkpoint, source))


def _weights(checkpoint: Mapping[str, Any], source: str | Path) -> Mapping[str, Tensor]:
    weights = checkpoint.get("state_dict")
    if not isinstance(weights, Mapping) or not all(isinstance(w, Tensor) and isinstance(name, str) for name, w in weights.items()):
        raise CheckpointError(f"{source} is not an attnkit checkpoint: its state_dict has more than tensors with names")
    return weights


def export(path: str | Path, out: str | Path) -> bool:
    """Write the task of a checkpoint as a safetensors file: weights, and in the metadata all that rebuilds it, tokenizers included.

    Of a run with averaged weights these are the averages, as everywhere but in `attnkit fit`, which goes on with the current ones.

    Args:
        path: The checkpoint, sharded or not.
        out: The file to write. It appears whole or not at all.

    Returns:
        Whether the weights are averages.

    Raises:
        CheckpointError: The checkpoint cannot be used.
    """
    checkpoint = load_checkpoint(path)
    metadata = {"attnkit": json.dumps({"attnkit": checkpoint["attnkit"], ARGUMENTS: checkpoint[ARGUMENTS]})}
    with atomic(Path(out)) as file:
        save_model(rebuild(checkpoint, path), str(file), metadata=metadata)
    return "averaging_state" in checkpoint


def load_exported(path: str | Path) -> "Task":
    """Return the task in a file that `export` wrote.

    Raises:
        CheckpointError: The file is missing, damaged, not attnkit's or too new, or needs what is not installed.
    """
    path = Path(path)
    _require_file(path)
    _require_modest_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        weights = load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is cut short or damaged, or is no safetensors file ({error})") from error
    if "attnkit" not in metadata:
        raise CheckpointError(f"{path} is a safetensors file, but was not written by `attnkit export`: it does not say what model it is")
    try:
        described = parse_json(metadata["attnkit"], containers=MAX_CONTAINERS)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be used: its metadata is not valid: {error}") from error
    require_readable(described, path)
    task = _build(described["attnkit"], described[ARGUMENTS], path, weights)
    try:
        load_model(task, path)  # knows that tied weights are written once
    except RuntimeError as error:
        raise CheckpointError(f"the weights in {path} do not fit the model that it describes: {error}") from error
    return task


def _require_modest_header(path: Path) -> None:
    """Raise if the header of a safetensors file, which is JSON after its length in 8 bytes, is too large."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size - 8:
            raise CheckpointError(f"{path} is cut short or damaged, or is no safetensors file")
        try:
            if length > MAX_JSON:
                raise ValueError(f"more than {MAX_JSON // 2**20} MiB")
            text = file.read(length)
            if text.count(b"data_offsets") > MAX_TENSORS:
                raise ValueError(f"more than {MAX_TENSORS:,} tensors")
            header = parse_json(text, containers=MAX_CONTAINERS)
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged, or is not a safetensors file: in its header, {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} is no safetensors file: its header is a {type(header).__name__}")


def header(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint says of itself, for the task of a registry name and its arguments."""
    return {"format": FORMAT, "version": __version__, "task": task, "packages": _packages({"name": task, **arguments})}


def require_readable(checkpoint: Any, source: str | Path, *, trust: bool = False) -> None:
    """Raise unless `checkpoint` is attnkit's, of a known format, and all of its components are installed.

    A component may be a class path. Its module must be imported already, unless `trust` allows the checkpoint to have it imported, with
    all that its recipe imports.
    """
    content: Mapping[str, Any] = checkpoint if isinstance(checkpoint, Mapping) else {}
    written: Any = content.get("attnkit")
    if not _is_header(written) or not isinstance(arguments_of(content), Mapping):
        is_lightning = "pytorch-lightning_version" in content
        what = "a Lightning checkpoint of another project" if is_lightning else "a file of another project"
        raise CheckpointError(f"{source} is not an attnkit checkpoint, but {what}")
    if written["format"] > FORMAT:
        raise CheckpointError(
            f"{source} was written by attnkit {written['version']} in format {written['format']}, but attnkit {__version__} reads formats "
            f"up to {FORMAT}: pip install --upgrade attnkit"
        )
    imports = module_names(saved_recipe(content).get(IMPORTS))
    try:
        if trust:
            import_modules(imports)
        with importing(trust):
            found = list(components(tasks, {"name": written["task"], **arguments_of(content)}))
    except ConfigurationError as error:
        raise MissingComponentError(f"{source} cannot be used: {error}") from error
    for registry, name in found:
        if name not in registry and "." not in name:
            package = written["packages"].get(f"{registry.attribute}.{name}")
            flags = " ".join(f"--{IMPORTS} {module}" for module in imports) or f"--{IMPORTS} MODULE"
            hint = f": pip install {package}" if package else f"; import the module that registers it first (on the command line: {flags})"
            raise MissingComponentError(f"{source} needs the {registry.family} {name!r}, which is not installed here{hint}")
    _require_own_files(content.get("callbacks"), source)


def arguments_of(checkpoint: Mapping[str, Any]) -> Any:
    """Return the arguments of the task in a checkpoint."""
    return checkpoint["attnkit"]["arguments"] if is_of_own_class(checkpoint) else checkpoint.get(ARGUMENTS)


def is_of_own_class(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is of a user's own LightningModule, which may not save its arguments: the header has them."""
    return "arguments" in checkpoint["attnkit"] and "." in tasks.canonical(checkpoint["attnkit"]["task"])


def saved_recipe(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the name, `imports`, `data` and `trainer` of the recipe in a checkpoint; a run from Python has none."""
    callbacks = checkpoint.get("callbacks")
    state = callbacks.get(RECIPE_STATE) if isinstance(callbacks, Mapping) else None
    return state if isinstance(state, Mapping) else {}


def _require_own_files(callbacks: Any, source: str | Path) -> None:
    """Raise if a `ModelCheckpoint` would delete files outside its folder: it deletes those that it has noted in its state."""
    for state in callbacks.values() if isinstance(callbacks, Mapping) else ():
        if isinstance(state, Mapping) and "dirpath" in state:
            noted = [*(state.get("best_k_models") or ()), state.get("kth_best_model_path"), state.get("last_model_path")]
            folder = os.path.normpath(str(state["dirpath"]))
            if foreign := [str(path) for path in noted if path and folder not in map(str, Path(os.path.normpath(str(path))).parents)]:
                raise CheckpointError(f"{source} cannot be used: it notes as a checkpoint of its own {foreign[0]}, outside {folder}")


def _is_header(written: Any) -> bool:
    kinds = {"format": int, "version": str, "task": str, "packages": Mapping}
    return isinstance(written, Mapping) and all(isinstance(written.get(key), kind) for key, kind in kinds.items())


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target and renames it, so that a killed run or a full disk leaves no half of one.

    Sharded checkpoints, of another strategy, are read too.

    (Lightning's own writes to the folder for temporary files; from there to another disk is a copy, which can be cut short.)

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(plugins=[AtomicCheckpointIO()], logger=False, accelerator="cpu", enable_checkpointing=False)
    """

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        try:
            with atomic(Path(path)) as file:
                with file.open("wb") as stream:  # with a path, torch does not say why a write failed
                    torch.save(checkpoint, stream)
                _require_readable_again(file)
        except (OSError, RuntimeError) as error:
            cause = error if isinstance(error, OSError) else error.__context__
            if not isinstance(cause, OSError):
                raise
            message = f"the checkpoint cannot be written ({cause.strerror or cause}); those that are there already are whole"
            raise OSError(cause.errno, message, str(path)) from error

    @override
    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: bool | None = None) -> Any:
        """Read a checkpoint on the CPU, as data only whatever `weights_only` is."""
        if "://" in str(path):
            return super().load_checkpoint(path, weights_only=True)
        path = Path(path)
        return load_checkpoint(path) if is_sharded_checkpoint(path) else _read_file(path)


def _require_readable_again(file: Path) -> None:
    try:
        check_archive(file)
    except ForeignError:
        pass  # a callback of the user's own keeps more than plain data
    except ArchiveError as error:
        raise CheckpointError(f"the checkpoint could not be read again: {error}. Is the vocabulary too large?") from error


def _require_file(path: Path) -> None:
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder, but not that of a sharded checkpoint, nor a checkpoint file")
    if not path.exists():
        there = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise CheckpointError(f"no checkpoint at {path}.{nearest(path.name, there)}")
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file, but a device or a pipe")
    if path.stat().st_size == 0:
        raise CheckpointError(f"{path} is cut short: it is empty")


def _build(written: Mapping[str, Any], arguments: Mapping[str, Any], source: str | Path, weights: Mapping[str, Tensor]) -> "Task":
    stored = {
        weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes() // weight.element_size() for weight in weights.values()
    }
    try:
        with importing(False), _no_larger_than(len(weights), sum(stored.values())):
            task: Task = tasks.build({"name": written["task"], **arguments})
        with importing(False), _no_larger_than(len(weights), sum(stored.values())):
            task.configure_model()
    except CheckpointError as error:
        raise CheckpointError(f"{source} cannot be used: {error}") from error
    except Exception as error:  # arguments of the right types, but no sense, may end in any way
        reason = str(error) if isinstance(error, ConfigurationError) else str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{source}, written by attnkit {written['version']}, cannot be rebuilt by {__version__}: {reason}") from error
    return task.to(_dtype(weights))


@contextmanager
def _no_larger_than(tensors: int, elements: int) -> Iterator[None]:
    """Raise as soon as the modules that are built have far more parameters and buffers than a checkpoint holds."""
    left = [4 * tensors + 16, 4 * elements + 2**20]  # tied weights count each time, and not all buffers are stored

    def count(module: torch.nn.Module, name: str, tensor: Tensor | None) -> None:
        if tensor is not None:
            left[0] -= 1
            left[1] -= tensor.numel()
        if min(left) < 0:
            raise CheckpointError(f"it describes a far larger model than the {tensors:,} tensors of {elements:,} elements that it holds")

    hooks = [register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _dtype(weights: Mapping[str, Tensor]) -> torch.dtype:
    return next((w.dtype for w in weights.values() if w.is_floating_point()), torch.get_default_dtype())


def components(registry: Registry, spec: Spec) -> Iterator[tuple[Registry, str]]:
    """Yield each component in a spec, also those that are not installed (but nothing below them).

    Raises:
        ConfigurationError: A class path cannot be found, or may not be imported.
    """
    name, arguments = registry.split(spec)
    yield registry, name
    if name not in registry and "." not in name:
        return
    nested: list[tuple[Registry, Spec]] = []
    for argument in registry.arguments(name):
        if argument.name in arguments:
            argument.visit(arguments[argument.name], lambda slot, inner, _: nested.append((slot, inner)))
    for slot, inner in nested:
        yield from components(slot, inner)


def _packages(spec: Spec) -> dict[str, str]:
    """Return who provides the components that are neither attnkit's nor torch's: `{"attentions.gaussian": "my-package==1.0"}`."""
    modules = {f"{r.attribute}.{name}": r.get(name).__module__.partition(".")[0] for r, name in components(tasks, spec)}
    foreign = {component: module for component, module in modules.items() if module not in ("attnkit", "torch")}
    distributions = packages_distributions() if foreign else {}
    found = {component: distributions[module][0] for component, module in foreign.items() if module in distributions}
    return {component: f"{name}=={version(name)}" for component, name in found.items()}
