"""The index of a sharded checkpoint: where each tensor is stored. It is JSON, and nothing in it is trusted before it is checked.

An entry is `{"path": [...], "shape": [...], "dtype": "float32", "pieces": [{"begin": [...], "shape": [...], "file": "__0_0.distcp",
"start": 0, "length": 1577}]}` for a tensor, and `{"path": [...], "file": ..., "start": ..., "length": ...}` for anything else, where
`path` lists its keys in the nested dictionary.
"""

import io
import math
import pickle
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from typing_extensions import override

from attnkit.checkpoint.errors import ArchiveError, HalfWrittenError
from attnkit.checkpoint.limits import MAX_CONTAINERS, MAX_JSON
from attnkit.checkpoint.pickles import check_pickle
from attnkit.files import parse_json

FORMAT = 1
DTYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


def describe(index: Metadata) -> dict[str, Any]:
    """Return torch's index as plain data."""
    entries: dict[str, Any] = {}
    for key, entry in index.state_dict_metadata.items():
        described: dict[str, Any] = {"path": list(index.planner_data[key])}
        if isinstance(entry, TensorStorageMetadata):
            pieces = [(c.offsets, c.sizes, index.storage_data[MetadataIndex(key, c.offsets)]) for c in entry.chunks]
            described |= {
                "shape": list(entry.size),
                "dtype": str(entry.properties.dtype).removeprefix("torch."),
                "pieces": [{"begin": list(begin), "shape": list(shape), **_place(info)} for begin, shape, info in pieces],
            }
        else:
            described |= _place(index.storage_data[MetadataIndex(key)])
        entries[key] = described
    return {"format": FORMAT, "entries": entries}


def read_index(path: Path, folder: Path) -> Metadata:
    """Return torch's index from a JSON file; raise an `ArchiveError` unless its pieces fit their tensors and the files in the folder."""
    data = _content(path)
    try:
        content = parse_json(data, containers=MAX_CONTAINERS)
    except ValueError as error:
        raise ArchiveError(f"its JSON cannot be read: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise ArchiveError("it has a newer format: pip install --upgrade attnkit")
    return parse(content, folder)


def parse(content: Any, folder: Path) -> Metadata:
    """Return torch's index from plain data, like `read_index`."""
    try:
        entries = {str(key): dict(entry) for key, entry in content["entries"].items()}
        index = Metadata(state_dict_metadata={}, planner_data={}, storage_data={})
        places: dict[str, list[tuple[int, int]]] = {}
        for key, entry in entries.items():
            index.planner_data[key] = _path(entry["path"])
            if "pieces" not in entry:
                index.state_dict_metadata[key] = BytesStorageMetadata()
                index.storage_data[MetadataIndex(key)] = _stored(entry, places)
                continue
            tensor = _tensor(key, entry)
            index.state_dict_metadata[key] = tensor
            for chunk, piece in zip(tensor.chunks, entry["pieces"], strict=True):
                place = _stored(piece, places)
                if place.length < math.prod(chunk.sizes) * tensor.properties.dtype.itemsize:
                    raise ArchiveError(f"{key} needs more than its {place.length:,} stored bytes")
                index.storage_data[MetadataIndex(key, chunk.offsets)] = place
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ArchiveError):
            raise
        raise ArchiveError(f"it is not an index of a sharded checkpoint ({type(error).__name__}: {error})") from error
    for name, pieces in places.items():
        _require_there(folder, name, pieces)
    return index


def read_pickled_index(path: Path) -> Any:
    """Return, as plain data, an index of the first edition or of torch itself: a pickle that may refer only to the classes of an index."""
    try:
        data = _content(path)
        check_pickle(data)
        index = _IndexUnpickler(io.BytesIO(data)).load()
        return describe(index)
    except ArchiveError:
        raise
    except Exception as error:  # a damaged file may fail in any way
        raise ArchiveError(f"it is damaged, or not an index of a sharded checkpoint ({error})") from error


class _IndexUnpickler(pickle.Unpickler):
    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _CLASSES:
            raise ArchiveError(f"it refers to {module}.{name}")
        return super().find_class(module, name)


_OF_METADATA = (
    "Metadata TensorStorageMetadata TensorProperties _MEM_FORMAT_ENCODING ChunkStorageMetadata BytesStorageMetadata MetadataIndex "
    "StorageMeta"
)
_CLASSES = {
    *(("torch.distributed.checkpoint.metadata", name) for name in _OF_METADATA.split()),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    *(("torch", name) for name in DTYPES),
}
"""Exact names, none of which has a dot: protocol 4 resolves a dotted name through attributes of attributes."""


def _content(path: Path) -> bytes:
    if path.stat().st_size > MAX_JSON:
        raise ArchiveError(f"it has more than {MAX_JSON // 2**20} MiB")
    return path.read_bytes()


def _place(info: Any) -> dict[str, Any]:
    return {"file": info.relative_path, "start": info.offset, "length": info.length}


def _path(keys: Any) -> tuple[str | int, ...]:
    if not isinstance(keys, list) or not keys or not all(type(key) in (str, int) for key in keys):
        raise ArchiveError(f"{keys!r} is not a path of keys")
    return tuple(keys)


def _numbers(values: Any) -> torch.Size:
    if not isinstance(values, list) or len(values) > 64 or not all(type(value) is int and 0 <= value < 2**62 for value in values):
        raise ArchiveError(f"{str(values)[:100]} are not sizes")
    return torch.Size(values)


def _tensor(key: str, entry: Mapping[str, Any]) -> TensorStorageMetadata:
    """Return the description of a tensor, whose pieces must cover it exactly once."""
    shape = _numbers(entry["shape"])
    chunks = [ChunkStorageMetadata(offsets=_numbers(piece["begin"]), sizes=_numbers(piece["shape"])) for piece in entry["pieces"]]
    for chunk in chunks:
        if len(chunk.offsets) != len(shape) or len(chunk.sizes) != len(shape):
            raise ArchiveError(f"a piece of {key} has a different number of axes")
        if any(begin + size > whole for begin, size, whole in zip(chunk.offsets, chunk.sizes, shape, strict=True)):
            raise ArchiveError(f"a piece of {key} is outside it")
    covered = sum(math.prod(chunk.sizes) for chunk in chunks) == math.prod(shape) and len({c.offsets for c in chunks}) == len(chunks)
    if not covered or not _are_a_grid([chunk for chunk in chunks if math.prod(chunk.sizes)]):
        raise ArchiveError(f"the pieces of {key} overlap, or do not cover it")
    return TensorStorageMetadata(TensorProperties(dtype=DTYPES[entry["dtype"]]), shape, chunks)


def _are_a_grid(chunks: list[ChunkStorageMetadata]) -> bool:
    """Return whether the ends of the pieces along each axis, as processes cut a tensor, cut no piece: then they overlap only if equal."""
    for spans in zip(*([*zip(c.offsets, c.sizes, strict=True)] for c in chunks), strict=True):
        ends = sorted({end for begin, size in spans for end in (begin, begin + size)})
        following = dict(pairwise(ends))
        if any(following[begin] != begin + size for begin, size in spans):
            return False
    return True


def _stored(piece: Mapping[str, Any], places: dict[str, list[tuple[int, int]]]) -> _StorageInfo:
    """Return where a piece is stored, and record it in `places`."""
    name, (start, length) = piece["file"], _numbers([piece["start"], piece["length"]])
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".distcp"):
        raise ArchiveError(f"it refers to the file {str(name)[:100]!r}, which is not a part of a checkpoint")
    places.setdefault(name, []).append((start, start + length))
    return _StorageInfo(name, start, length)


def _require_there(folder: Path, name: str, pieces: list[tuple[int, int]]) -> None:
    path = folder / name
    size = path.stat().st_size if path.is_file() and not path.is_symlink() else 0
    if size < (end := max(end for _, end in pieces)):
        raise HalfWrittenError(f"{name} has {size:,} of {end:,} bytes")
    if any(end > start for (_, end), (start, _) in pairwise(sorted(pieces))):
        raise ArchiveError(f"pieces in {name} overlap")
