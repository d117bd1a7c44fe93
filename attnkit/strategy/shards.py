"""Sharded checkpoints: a folder to which every process writes its own part. Here one process reads them all.

The folder holds one `.distcp` file per process, `.metadata` (which tensor lies where) and `meta.pt` (all that is no tensor of the model or
of the optimizer). The last two are written at the end.
"""

import io
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from typing_extensions import override

from attnkit.registry import ConfigurationError

INDEX, REST = ".metadata", "meta.pt"


def is_sharded_checkpoint(path: Path) -> bool:
    """Return whether a path is the folder of a sharded checkpoint, complete or not."""
    return path.is_dir() and any(part.suffix == ".distcp" or part.name in (INDEX, REST) for part in path.iterdir())


def require_complete(path: Path) -> Metadata:
    """Return the index of a sharded checkpoint.

    Raises:
        ConfigurationError: Something is missing, cut short or damaged.
    """
    missing = [name for name in (INDEX, REST) if not (path / name).is_file()]
    if missing:
        raise ConfigurationError(
            f"{path} is a half-written checkpoint: it has no {' and no '.join(missing)}, which are written last; use an earlier checkpoint"
        )
    try:
        index = _Plain(io.BytesIO((path / INDEX).read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, AttributeError) as error:
        raise ConfigurationError(f"{path / INDEX} is damaged, or is no index of a sharded checkpoint ({error})") from error
    ends: dict[str, int] = {}
    for piece in index.storage_data.values():
        ends[piece.relative_path] = max(ends.get(piece.relative_path, 0), piece.offset + piece.length)
    for name, end in ends.items():
        size = (path / name).stat().st_size if (path / name).is_file() else 0
        if size < end:
            raise ConfigurationError(
                f"{path} is a half-written checkpoint: {name} has {size:,} of {end:,} bytes; use an earlier checkpoint"
            )
    assert isinstance(index, Metadata)
    return index


def require_whole(path: Path) -> None:
    """Read all of a sharded checkpoint, one tensor after another, and compare the checksums.

    Raises:
        ConfigurationError: Something is missing, cut short or damaged.
    """
    index = require_complete(path)
    pieces = [(piece.relative_path, piece.offset, piece.length) for piece in index.storage_data.values()]
    for name, start, length in [*pieces, (REST, 0, (path / REST).stat().st_size)]:
        with (path / name).open("rb") as file:
            file.seek(start)
            piece = io.BytesIO(file.read(length))
        try:
            with zipfile.ZipFile(piece) as archive:  # as torch.save writes everything
                damaged = archive.testzip()
        except zipfile.BadZipFile:
            damaged = "zip file"
        if damaged is not None:
            raise ConfigurationError(f"{path} is damaged: the checksum of a {damaged} in {name} is wrong; use an earlier checkpoint")


def read_rest(path: Path) -> dict[str, Any]:
    """Return what a sharded checkpoint holds beside weights and the states of optimizers.

    Raises:
        ConfigurationError: It is not complete, or holds more than tensors and plain data.
    """
    require_complete(path)
    try:
        return dict(torch.load(path / REST, map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise _damaged(path, error) from error


def read_sharded(path: Path) -> dict[str, Any]:
    """Return a sharded checkpoint as the dictionary that a plain one holds: all weights, and the states of the optimizers.

    Raises:
        ConfigurationError: It is not complete, or holds more than tensors and plain data.
    """
    index = require_complete(path)
    content: dict[str, Any] = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype) if isinstance(entry, TensorStorageMetadata) else None
        for key, entry in index.state_dict_metadata.items()
    }
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # that is what `no_dist` asks for
            load(content, storage_reader=_Reader(path, index), planner=_Planner(), no_dist=True)
    except (CheckpointException, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise _damaged(path, error) from error
    nested = _nest({tuple(index.planner_data[key]): value for key, value in content.items()})
    optimizers: list[dict[str, Any]] = []
    while (key := f"optimizer_{len(optimizers)}") in nested:
        groups = nested[key]["param_groups"]
        state = {"state": nested[key].get("state", {}), "param_groups": [groups[i] for i in range(len(groups))]}
        optimizers.append(number_parameters(state))
    return {**read_rest(path), "state_dict": nested["state_dict"], "optimizer_states": optimizers}


def number_parameters(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of an optimizer with numbers in place of the names of parameters, as an optimizer of one process has it.

    Example:
        >>> number_parameters({"state": {"b": 7}, "param_groups": [{"params": ["b"]}, {"params": ["a"]}]})
        {'state': {0: 7}, 'param_groups': [{'params': [0]}, {'params': [1]}]}
    """
    names = [name for group in state["param_groups"] for name in group["params"]]
    return _rename(state, {name: i for i, name in enumerate(names)})


def name_parameters(state: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the state of an optimizer with names in place of the numbers of parameters; `names` are in the optimizer's order.

    Example:
        >>> name_parameters({"state": {0: 7}, "param_groups": [{"params": [0]}, {"params": [1]}]}, ["b", "a"])
        {'state': {'b': 7}, 'param_groups': [{'params': ['b']}, {'params': ['a']}]}
    """
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    return _rename(state, dict(zip(numbers, names, strict=True)))


def _rename(state: Mapping[str, Any], new: Mapping[Any, Any]) -> dict[str, Any]:
    groups = [{**group, "params": [new[old] for old in group["params"]]} for group in state["param_groups"]]
    return {"state": {new[old]: value for old, value in state["state"].items()}, "param_groups": groups}


def _damaged(path: Path, error: BaseException) -> ConfigurationError:
    return ConfigurationError(f"{path} is damaged, or holds more than tensors and plain data ({error})")


def _nest(flat: Mapping[tuple[Any, ...], Any]) -> dict[str, Any]:
    nested: dict[Any, Any] = {}
    for path, value in flat.items():
        place = nested
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
    return nested


class _Plain(pickle.Unpickler):
    """Reads the index, which is a pickle, without running anything that is not of torch's checkpoint format."""

    @override
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("torch.distributed.checkpoint.") or (module, name) in _HARMLESS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


_HARMLESS = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    *(("torch", str(dtype).removeprefix("torch.")) for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)),
}


class _Reader(FileSystemReader):
    def __init__(self, path: Path, index: Metadata) -> None:
        super().__init__(path)
        self.index = index

    @override
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self.index


class _Planner(DefaultLoadPlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    @override
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)
