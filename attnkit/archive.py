"""Reads archives of `torch.save` that anyone may have made, as data only and within limits.

`torch.load(weights_only=True)` runs nothing that a file asks for, but trusts its sizes: a file of a kilobyte can claim a terabyte.
Here sizes are compared with what the file holds before anything is allocated.
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

from attnkit.files import MAX_DEPTH
from attnkit.registry import ConfigurationError

MAX_OPERATIONS = 1_000_000
"""Of a pickle. A vocabulary of 250,000 words takes 500,000, a tensor about 20."""
MAX_JSON = 32 * 2**20
"""Bytes of a JSON text."""
MAX_CONTAINERS = 1_000_000
"""Lists and mappings in a JSON text."""
MAX_PICKLE, MAX_DIRECTORY = 64 * 2**20, 10 * 2**20

GLOBALS = frozenset(
    {
        "_codecs encode",  # bytes
        "builtins set",
        "builtins complex",
        "__builtin__ set",
        "__builtin__ complex",
        "collections OrderedDict",
        "collections Counter",
        "torch Size",
        "torch device",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_tensor_v3",
        "torch._utils _rebuild_parameter",
        "torch.storage UntypedStorage",
        *(f"torch {name}" for name in vars(torch) if name.endswith("Storage")),
        *(f"torch {str(kind).removeprefix('torch.')}" for kind in vars(torch).values() if isinstance(kind, torch.dtype)),
    }
)
"""The names, with their modules, that the pickle in an archive may refer to."""


class ArchiveError(ConfigurationError):
    """A file that cannot be read as data; the message says why, but not which file."""


class ForeignError(ArchiveError):
    """An intact file that holds more than tensors and plain data."""


def read_archive(file: Path | io.BytesIO, *, mmap: bool = False) -> Any:
    """Return the tensors and plain data that `torch.save` wrote to a file.

    Args:
        file: A path, or the bytes.
        mmap: Leave the tensors on the disk until they are used; for a path only.

    Raises:
        ArchiveError: The file is damaged, or goes beyond a limit: of the number of operations of its pickle, of nesting, of tensors that
            are larger than what is stored.
        ForeignError: It refers to something other than tensors and plain data.
    """
    try:
        with file.open("rb") if isinstance(file, Path) else nullcontext(file) as stream:
            check_pickle(_pickle_in(stream))
        if not isinstance(file, Path):
            file.seek(0)
        with warnings.catch_warnings(), _no_garbage_collection():
            warnings.simplefilter("ignore")  # torch warns of what is odd in a file
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
        require_modest(content)
    except (ConfigurationError, OSError):
        raise
    except Exception as error:  # what is damaged may end in any way
        reason = str(error).partition("\n")[0]
        if "weights_only" in reason:  # torch advises to load it without
            reason = "it is more than what torch.save writes of tensors and plain data"
        raise ArchiveError(reason or type(error).__name__) from error
    return content


def check_archive(file: Path) -> None:
    """Check what `torch.save` wrote without reading its tensors.

    Raises:
        ArchiveError: `read_archive` would refuse it.
        ForeignError: It refers to a name that is not one of `GLOBALS`.
    """
    with file.open("rb") as stream:
        check_pickle(_pickle_in(stream))


def check_pickle(data: bytes) -> None:
    """Check the operations of a pickle without carrying them out.

    Names of protocol 4 (`STACK_GLOBAL`) are not looked at: torch's reader has no such operation, and others have lists of their own.

    Raises:
        ArchiveError: It is cut short, has an operation that plain data do not need, or too many.
        ForeignError: It refers to a name that is not one of `GLOBALS`.

    Example:
        >>> import pickle
        >>> check_pickle(pickle.dumps({"a": [1, 2.5, None]}, protocol=2))
        >>> check_pickle(pickle.dumps(print, protocol=2))
        Traceback (most recent call last):
        attnkit.archive.ForeignError: it refers to __builtin__.print
    """
    position = operations = 0
    depths: list[int] = []  # of the tuples on the stack: to hash one that is too deep overflows the stack of C
    marks: list[int] = []
    memo: dict[int, int] = {}
    try:
        while (code := data[position]) != _STOP:
            size, effect = _OPERATIONS[code]
            start = position + 1
            position = start + size
            if effect == _PUSH:
                depths.append(0)
            elif effect == _TEXT:
                position += int.from_bytes(data[start:position], "little")
                depths.append(0)
            elif effect == _PUT:
                index = int.from_bytes(data[start:position], "little") if size else len(memo)
                if index > MAX_OPERATIONS:
                    raise ArchiveError(f"its pickle has the memo {index:,}")  # an array of that length in C
                memo[index] = depths[-1]
            elif effect == _GET:
                depths.append(memo[int.from_bytes(data[start:position], "little")])
            elif effect == _MARK:
                marks.append(len(depths))
            elif effect == _GLOBAL:
                position = data.index(b"\n", data.index(b"\n", start) + 1) + 1
                if (name := data[start : position - 1].decode().replace("\n", " ", 1)) not in GLOBALS:
                    raise ForeignError(f"it refers to {name.replace(' ', '.', 1)[:200]}")
                depths.append(0)
            elif effect >= _POP:
                del depths[len(depths) - (effect - _POP) :]
            elif effect == _POP_TO_MARK:
                del depths[marks.pop() :]
            elif effect != _NOTHING:  # a tuple of so many, or of all since the mark
                first = marks.pop() if effect == _TUPLE else len(depths) - effect
                depths[first:] = [1 + max(depths[first:], default=0)]
                if depths[-1] > MAX_DEPTH:
                    raise ArchiveError(f"its tuples are nested more than {MAX_DEPTH} deep")
            operations += 1
            if operations > MAX_OPERATIONS:
                raise ArchiveError(f"its pickle has more than {MAX_OPERATIONS:,} operations")
    except KeyError as error:
        raise ArchiveError(f"its pickle has the operation {code:#x}, which plain data do not need") from error
    except (IndexError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ArchiveError("its pickle is cut short or damaged") from error


def require_modest(content: Any) -> None:
    """Check that plain data is no deeper and no larger than it looks: shared parts count each time that they are met.

    Raises:
        ArchiveError: It is nested too deeply or in itself, repeats its parts too often, or has a tensor that is larger than its storage.
        UnicodeEncodeError: A string is not Unicode (a lone surrogate).
    """
    if _expanded(content, {}, depth=0) > MAX_OPERATIONS:
        raise ArchiveError(f"it has more than {MAX_OPERATIONS:,} values, because it repeats its parts")


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause the search for cycles, which takes most of the time in which many small things are read."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _pickle_in(stream: BinaryIO) -> bytes:
    """Return the pickle in an archive, after checking that the archive is as torch writes it."""
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
            raise ArchiveError("it is a zip file, but not one of torch.save")
        if archive.getinfo(pickle).file_size > MAX_PICKLE:
            raise ArchiveError(f"its pickle has more than {MAX_PICKLE // 2**20} MiB")
        return archive.read(pickle)  # compares the checksum


def _directory_size(stream: BinaryIO, size: int) -> int:
    """Return the size of the directory of a zip file, which `zipfile` reads at once, as the end of the file says."""
    stream.seek(max(size - 42, 0))
    locator, end = (tail := stream.read())[:20], tail[20:]
    if len(tail) < 42 or not end.startswith(b"PK\x05\x06"):
        raise ArchiveError("it is cut short, or not a file of torch.save")
    found = cast(int, struct.unpack("<I", end[12:16])[0])
    if not locator.startswith(b"PK\x06\x07"):  # of more than 65,535 entries or 4 GiB
        return found
    stream.seek(min(struct.unpack("<Q", locator[8:16])[0], size))
    record = stream.read(56)
    return struct.unpack("<Q", record[40:48])[0] if len(record) == 56 else 0


def _expanded(value: Any, known: dict[int, int], *, depth: int) -> int:
    """Return how many values there are in `value`; `known` has the numbers of its parts by their ids."""
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
    """Raise if a tensor is more than a view of stored numbers of a CPU."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise ArchiveError(f"it has a tensor that is not dense ({tensor.layout}, {tensor.device})")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ArchiveError(f"it has a tensor of {tensor.numel():,} elements, of which fewer are stored")


_NUMBERS = (int, float, bool, type(None))
_STOP = ord(".")
_POP = 10  # and how many
_TUPLE, _POP_TO_MARK, _PUSH, _TEXT, _PUT, _GET, _MARK, _GLOBAL, _NOTHING = range(-1, -10, -1)
_EFFECTS: dict[int, dict[int, str]] = {  # of each operation, by the number of bytes that follow it
    _PUSH: {0: "N\x88\x89])}\x8f", 1: "K", 2: "M", 4: "J", 8: "G"},
    _TEXT: {1: "U\x8a\x8c", 4: "X"},
    _PUT: {0: "\x94", 1: "q", 4: "r"},
    _GET: {1: "h", 4: "j"},
    _MARK: {0: "("},
    _GLOBAL: {0: "c"},
    _NOTHING: {0: "Q", 1: "\x80", 8: "\x95"},
    1: {0: "\x85"},
    2: {0: "\x86"},
    3: {0: "\x87"},
    _TUPLE: {0: "t"},
    _POP + 1: {0: "Rb\x81\x93a"},
    _POP + 2: {0: "s"},
    _POP_TO_MARK: {0: "eu"},
}
_OPERATIONS = {ord(code): (size, effect) for effect, sizes in _EFFECTS.items() for size, codes in sizes.items() for code in codes}
