"""Reads archives of `torch.save` from untrusted sources, as data only and within limits.

`torch.load(weights_only=True)` executes nothing from a file, but trusts the sizes in it: a file of a kilobyte can claim a terabyte. This
module compares sizes with what the file holds before anything is allocated.
"""

import gc
import io
import struct
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from attnkit.checkpoint.errors import ArchiveError
from attnkit.checkpoint.limits import MAX_DIRECTORY, MAX_OPERATIONS, MAX_PICKLE
from attnkit.checkpoint.pickles import check_pickle
from attnkit.files import MAX_DEPTH
from attnkit.registry import ConfigurationError


def read_archive(file: Path | io.BytesIO, *, mmap: bool = False) -> Any:
    """Return the tensors and plain data that `torch.save` wrote to a file; with `mmap` and a path, tensors stay on disk until used.

    Raises an `ArchiveError` if the file is damaged or exceeds a limit, and a `ForeignError` if it refers to anything else.
    """
    try:
        with file.open("rb") if isinstance(file, Path) else nullcontext(file) as stream:
            check_pickle(_pickle_in(stream))
        if not isinstance(file, Path):
            file.seek(0)
        with warnings.catch_warnings(), _no_garbage_collection():
            warnings.simplefilter("ignore")  # torch warns of oddities
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
        if _expanded(content, {}, depth=0) > MAX_OPERATIONS:
            raise ArchiveError(f"it has more than {MAX_OPERATIONS:,} values, because it repeats its parts")
    except (ConfigurationError, OSError):
        raise
    except Exception as error:  # a damaged file may fail in any way
        reason = str(error).partition("\n")[0]
        if "weights_only" in reason:  # torch advises loading it without
            reason = "it holds more than torch.save writes for tensors and plain data"
        raise ArchiveError(reason or type(error).__name__) from error
    return content


def check_archive(file: Path) -> None:
    """Raise as `read_archive` does, without reading the tensors."""
    with file.open("rb") as stream:
        check_pickle(_pickle_in(stream))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection, which takes most of the time of reading many small objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _pickle_in(stream: BinaryIO) -> bytes:
    """Return the pickle in an archive, after checking that torch writes archives like it."""
    size = stream.seek(0, io.SEEK_END)
    if _directory_size(stream, size) > MAX_DIRECTORY:
        raise ArchiveError(f"the directory of the archive has more than {MAX_DIRECTORY // 2**20} MiB")
    with zipfile.ZipFile(stream) as archive:
        entries = archive.infolist()
        names = {entry.filename for entry in entries}
        folder = entries[0].filename.partition("/")[0] if entries else ""
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
            raise ArchiveError("its entries are compressed or encrypted, which torch.save does not do")
        if len(names) < len(entries) or sum(entry.file_size for entry in entries) > size:
            raise ArchiveError("its entries overlap")
        pickle = f"{folder}/data.pkl"
        if pickle not in names or not all(name.startswith(f"{folder}/") for name in names):
            raise ArchiveError("it is a zip file, but torch.save did not write it")
        if archive.getinfo(pickle).file_size > MAX_PICKLE:
            raise ArchiveError(f"its pickle has more than {MAX_PICKLE // 2**20} MiB")
        return archive.read(pickle)  # compares the checksum


def _directory_size(stream: BinaryIO, size: int) -> int:
    """Return the size that the end of a zip file claims for its directory, all of which `zipfile` reads at once."""
    stream.seek(max(size - 42, 0))
    locator, end = (tail := stream.read())[:20], tail[20:]
    if len(tail) < 42 or not end.startswith(b"PK\x05\x06"):
        raise ArchiveError("it is truncated, or torch.save did not write it")
    found = cast(int, struct.unpack("<I", end[12:16])[0])
    if not locator.startswith(b"PK\x06\x07"):  # it exists if there are more than 65,535 entries or 4 GiB
        return found
    stream.seek(min(struct.unpack("<Q", locator[8:16])[0], size))
    record = stream.read(56)
    return struct.unpack("<Q", record[40:48])[0] if len(record) == 56 else 0


def _expanded(value: Any, known: dict[int, int], *, depth: int) -> int:
    """Return the number of values in plain data, where shared parts count each time; `known` holds the numbers of its parts, by their ids.

    Raise if it is nested too deeply, or has a tensor larger than its storage.
    """
    if isinstance(value, Tensor):
        _require_stored(value)
    elif isinstance(value, str):
        if not value.isascii():
            value.encode()
    elif isinstance(value, dict | list | tuple | set) and value:
        if id(value) in known:
            return known[id(value)]
        if depth == MAX_DEPTH:
            raise ArchiveError(f"its lists and mappings are nested more than {MAX_DEPTH} deep")
        parts = chain(value, value.values()) if isinstance(value, dict) else value
        count = 1
        for part in parts:
            count += 1 if type(part) in _NUMBERS else _expanded(part, known, depth=depth + 1)
        known[id(value)] = count
        return count
    return 1


def _require_stored(tensor: Tensor) -> None:
    """Raise unless a tensor is a dense view of stored numbers on the CPU."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise ArchiveError(f"it has a tensor that is not dense ({tensor.layout}, {tensor.device})")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ArchiveError(f"it has a tensor of {tensor.numel():,} elements, but fewer are stored")


_NUMBERS = (int, float, bool, type(None))
