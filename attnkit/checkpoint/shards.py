"""Sharded checkpoints: a folder to which every process writes its own part. Here, one process reads them all.

The folder holds one `.distcp` file per process, `index.json` (where each tensor is stored) and `meta.pt` (everything but the tensors of
the model and the optimizer). The last two are written at the end. In a folder of the first edition the index is torch's `.metadata`, a
pickle, and weights have older names, which are replaced by the present ones wherever they are read.
"""

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from typing_extensions import override

from attnkit.checkpoint.archive import read_archive
from attnkit.checkpoint.errors import ArchiveError, CheckpointError, HalfWrittenError, other_numbers
from attnkit.checkpoint.outdated import name_of_today
from attnkit.checkpoint.shard_index import describe, parse, read_index, read_pickled_index

INDEX, PICKLED_INDEX, REST = "index.json", ".metadata", "meta.pt"


class StoredSize(NamedTuple):
    """The number of weights that a checkpoint holds."""

    tensors: int
    elements: int


def is_sharded_checkpoint(path: Path) -> bool:
    """Return whether a path is the folder of a sharded checkpoint, complete or not."""
    return path.is_dir() and any(part.suffix == ".distcp" or part.name in (PICKLED_INDEX, REST) for part in path.iterdir())


def require_complete(path: Path) -> Metadata:
    """Return the index of a sharded checkpoint; raise if something is missing, truncated or damaged."""
    index = INDEX if (path / INDEX).is_file() or not (path / PICKLED_INDEX).is_file() else PICKLED_INDEX
    missing = [name for name in (index, REST) if not (path / name).is_file()]
    if missing:
        raise CheckpointError(f"{path} is a half-written checkpoint: it lacks {' and '.join(missing)}; use an earlier checkpoint")
    if index == INDEX and (path / PICKLED_INDEX).exists():
        raise CheckpointError(f"{path} has two indices, {INDEX} and {PICKLED_INDEX}: attnkit never writes both")
    try:
        if index == INDEX:
            return read_index(path / INDEX, path)
        return parse(_with_names_of_today(read_pickled_index(path / PICKLED_INDEX)), path)
    except HalfWrittenError as error:
        raise CheckpointError(f"{path} is a half-written checkpoint: {error}; use an earlier checkpoint") from error
    except ArchiveError as error:
        raise CheckpointError(f"{path / index} is damaged, or not an index of a sharded checkpoint: {error}") from error


def stored_size(path: Path) -> StoredSize:
    """Return the size of the weights in a sharded checkpoint, from its index."""
    index = require_complete(path)
    entries = [entry for key, entry in index.state_dict_metadata.items() if index.planner_data[key][0] == "state_dict"]
    weights = [entry for entry in entries if isinstance(entry, TensorStorageMetadata)]
    return StoredSize(len(weights), sum(entry.size.numel() for entry in weights))


def require_whole(path: Path) -> None:
    """Read all of a sharded checkpoint, one tensor after another, and raise if a checksum is wrong or something is missing."""
    index = require_complete(path)
    for piece in [*index.storage_data.values(), _StorageInfo(REST, 0, (path / REST).stat().st_size)]:
        try:
            with zipfile.ZipFile(_piece(path, piece)) as archive:  # torch.save writes every piece as one
                damaged = archive.testzip()
        except zipfile.BadZipFile:
            damaged = "zip file"
        if damaged is not None:
            where = f"a {damaged} in {piece.relative_path}"
            raise CheckpointError(f"{path} is damaged: the checksum of {where} is wrong; use an earlier checkpoint")


def read_rest(path: Path) -> dict[str, Any]:
    """Return everything in a sharded checkpoint but the weights and the states of optimizers; raise if it is more than plain data."""
    require_complete(path)
    try:
        return dict(read_archive(path / REST))
    except (ArchiveError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error


def read_sharded(path: Path) -> dict[str, Any]:
    """Return a sharded checkpoint as the dictionary of a plain one, with all weights and states; raise if it is more than plain data."""
    index = require_complete(path)
    try:
        nested = _nest({tuple(keys): _read_entry(path, index, name) for name, keys in index.planner_data.items()})
        optimizers: list[dict[str, Any]] = []
        while (key := f"optimizer_{len(optimizers)}") in nested:
            groups = nested[key]["param_groups"]
            state = {"state": nested[key].get("state", {}), "param_groups": [groups[i] for i in range(len(groups))]}
            optimizers.append(number_parameters(state))
        read = {"state_dict": nested["state_dict"], "optimizer_states": optimizers}
    except (CheckpointException, ArchiveError, RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(path, error) from error
    return {**read_rest(path), **read}


def _read_entry(path: Path, index: Metadata, name: str) -> Any:
    """Return a tensor, put together from its pieces, or other data."""
    entry = index.state_dict_metadata[name]
    if not isinstance(entry, TensorStorageMetadata):
        return _read_value(path, _piece(path, index.storage_data[MetadataIndex(name)]))
    whole = torch.empty(entry.size, dtype=entry.properties.dtype)
    for chunk in entry.chunks:
        place = tuple(slice(begin, begin + size) for begin, size in zip(chunk.offsets, chunk.sizes, strict=True))
        whole[place] = _read_tensor(path, index, MetadataIndex(name, chunk.offsets), chunk.sizes)
    return whole


def _read_tensor(path: Path, index: Metadata, key: MetadataIndex, sizes: torch.Size) -> Tensor:
    """Return a piece of a tensor; raise if it is not what the index says."""
    tensor, entry = read_archive(_piece(path, index.storage_data[key])), index.state_dict_metadata[key.fqn]
    assert isinstance(entry, TensorStorageMetadata)
    if not isinstance(tensor, Tensor) or (tensor.shape, tensor.dtype) != (sizes, entry.properties.dtype):
        raise ArchiveError(f"a piece of {key.fqn} has a different shape or type from that in its index")
    return tensor


def _read_value(path: Path, piece: io.BytesIO) -> Any:
    """Return data other than a tensor; lists of strings in it are names of weights in the groups of an optimizer."""
    value = read_archive(piece)
    if (path / INDEX).exists() or not isinstance(value, list):
        return value
    return [name_of_today(item) if isinstance(item, str) else item for item in value]


def _with_names_of_today(index: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain data of an index of the first edition with the present names of weights."""
    entries: dict[str, Any] = {}
    for entry in index["entries"].values():
        path = [name_of_today(key) if isinstance(key, str) else key for key in entry["path"]]
        entries[".".join(map(str, path))] = {**entry, "path": path}  # as torch joins them
    return {**index, "entries": entries}


def load_into(state: dict[str, Any], path: Path) -> None:
    """Load the parts of a sharded checkpoint that `state` names into its tensors, or raise; all processes must call it."""
    try:
        load(state, storage_reader=Reader(path), planner=Planner(path))
    except (CheckpointException, ArchiveError, RuntimeError) as error:
        raise _damaged(path, error) from error


def write_sharded(state: dict[str, Any], rest: Mapping[str, Any], path: Path) -> None:
    """Write a sharded checkpoint into a new folder; all processes must call it.

    Each has parts of `state`, the weights and the states of optimizers; the first one writes the rest to `meta.pt`.
    """
    path.mkdir(parents=True, exist_ok=True)
    save(state, storage_writer=Writer(path))
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(dict(rest), path / REST)


def number_parameters(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of an optimizer with numbers for the names of parameters, as the optimizer of a single process has it.

    Example:
        >>> number_parameters({"state": {"b": 7}, "param_groups": [{"params": ["b"]}, {"params": ["a"]}]})
        {'state': {0: 7}, 'param_groups': [{'params': [0]}, {'params': [1]}]}
    """
    names = [name for group in state["param_groups"] for name in group["params"]]
    return _rename(state, {name: i for i, name in enumerate(names)})


def name_parameters(state: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the state of an optimizer with names for the numbers of parameters; `names` are in the optimizer's order.

    Example:
        >>> name_parameters({"state": {0: 7}, "param_groups": [{"params": [0]}, {"params": [1]}]}, ["b", "a"])
        {'state': {'b': 7}, 'param_groups': [{'params': ['b']}, {'params': ['a']}]}
    """
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    return _rename(state, dict(zip(numbers, names, strict=True)))


def _rename(state: Mapping[str, Any], new: Mapping[Any, Any]) -> dict[str, Any]:
    groups = [{**group, "params": [new[old] for old in group["params"]]} for group in state["param_groups"]]
    return {"state": {new[old]: value for old, value in state["state"].items()}, "param_groups": groups}


def _damaged(path: Path, error: BaseException) -> CheckpointError:
    if isinstance(error, CheckpointException):  # of all processes
        error = next(iter(error.failures.values()))[0]
    reason = str(error).partition("\n")[0] or type(error).__name__
    return CheckpointError(f"{path} is damaged, or holds more than tensors and plain data ({reason})")


def _nest(flat: Mapping[tuple[Any, ...], Any]) -> dict[str, Any]:
    nested: dict[Any, Any] = {}
    for path, value in flat.items():
        place = nested
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
    return nested


def _piece(folder: Path, place: _StorageInfo) -> io.BytesIO:
    with (folder / place.relative_path).open("rb") as file:
        file.seek(place.offset)
        return io.BytesIO(file.read(place.length))


class Writer(FileSystemWriter):
    """Writes the index as JSON."""

    @override
    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.storage_data = {result.index: result.storage_data for written in results for result in written}
        with (Path(self.path) / INDEX).open("w", encoding="utf-8") as file:
            json.dump(describe(metadata), file)
            file.flush()
            os.fsync(file.fileno())


class Reader(FileSystemReader):
    """Reads index and pieces as data only."""

    @override
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self.index = require_complete(Path(self.path))
        tensors = ((key, entry) for key, entry in self.index.state_dict_metadata.items() if isinstance(entry, TensorStorageMetadata))
        self.sizes = {MetadataIndex(key, chunk.offsets): chunk.sizes for key, entry in tensors for chunk in entry.chunks}
        return self.index

    @override
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, _piece(Path(self.path), self.storage_data[item.storage_index]))
                continue
            tensor = _read_tensor(Path(self.path), self.index, item.storage_index, self.sizes[item.storage_index])
            for axis, (begin, size) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                tensor = tensor.narrow(axis, begin, size)
            target = planner.resolve_tensor(item).detach()
            name = item.dest_index.fqn
            if others := other_numbers({name: tensor}, {name: target}):
                raise ArchiveError(others[0])
            target.copy_(tensor)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


class Planner(DefaultLoadPlanner):
    """Reads everything but tensors as data only."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    @override
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], _read_value(self.path, value))
