"""Files: safe reading of untrusted ones, and atomic writing.

Only regular files are opened, and the memory to read one is bounded by its size on disk, with limits for compressed files (`UNPACKED` and
`RATIO`). A file that cannot be read raises a `ConfigurationError` that names it, whatever the underlying library raises.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from reprlib import repr as short
from typing import Any, BinaryIO

from typing_extensions import override

from attnkit.registry import ConfigurationError, nearest

MAX_DEPTH = 64  # maximum nesting depth of lists and mappings in YAML and JSON
UNPACKED = 64 << 20  # bytes to which any compressed file may expand
RATIO = 50  # if more than `UNPACKED`, a compressed file may expand to this many times its size
SEARCHED = "attnkit.searched"
"""The audit event of `search`, with the location and the files: a file added there later also changes the data."""
LARGEST_JSON = 64 << 20  # maximum size in bytes of a JSON file, such as the result of a run


def regular(path: str | Path) -> Path:
    """Return a path, or raise unless it is a regular file or a link to one, since reading a pipe or a device could block forever."""
    if not os.path.isfile(path):  # unlike Path.is_file, False for a name that the OS rejects
        raise ConfigurationError(f"{str(path)!r} is {'not a regular file' if os.path.lexists(_named(path)) else 'missing'}")
    return Path(path)


def nearest_beside(path: Path) -> str:
    """Return ` Did you mean ...?` with similar names in a missing file's folder, or an empty string."""
    return nearest(path.name, os.listdir(path.parent) if os.path.isdir(path.parent) else [])


def _named(path: str | Path) -> str:
    return str(path).replace("\0", "\ufffd")


def read_bytes(path: str | Path, *, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; any failure raises a `ConfigurationError`."""
    try:
        with regular(path).open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise ConfigurationError(f"{path} is larger than {limit:,} bytes, the limit for such files")
    return content


def read_text(path: str | Path, *, limit: int) -> str:
    """Return the text of a regular file of at most `limit` bytes; raise as `read_bytes` does, or if it is not UTF-8."""
    try:
        return read_bytes(path, limit=limit).decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text (byte {error.start})") from error


def parse_json(text: str | bytes, *, containers: int | None = None) -> Any:
    r"""Return the data in JSON; `containers` is the maximum number of lists and mappings (default: unlimited).

    A `ValueError` says what is wrong, such as nesting deeper than `MAX_DEPTH`, a lone surrogate, or a key that occurs more than once.

    Example:
        >>> parse_json('{"a": [1, "b"]}')
        {'a': [1, 'b']}
        >>> parse_json('"\\ud800"')
        Traceback (most recent call last):
        ...
        ValueError: a string contains a lone surrogate
    """
    text = text.decode() if isinstance(text, bytes) else text
    brackets = text.count("[") + text.count("{")
    if containers is not None and brackets > containers:
        raise ValueError(f"more than {containers:,} lists and mappings")
    try:
        value = json.loads(text) if text.startswith("\ufeff") else _JSON.decode(text)  # json.loads explains a byte order mark
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    if brackets > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a string contains a lone surrogate") from None
    return value


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(repeated, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {short(repeated)} occurs more than once")
    return found


_JSON = json.JSONDecoder(object_pairs_hook=_mapping)  # kept, because making one takes as long as reading a line of data


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level := [v for v in level if isinstance(v, list | dict)]:
        level = [child for v in level for child in (v.values() if isinstance(v, dict) else v)]
        depth += 1
    return depth


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file in the folder of `path`; at the end of the `with` block it is renamed to `path`, unless the block fails.

    If the process is killed, the old file is unchanged. The folder is created if necessary.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic(Path(folder) / "report.txt") as draft:
        ...         _ = draft.write_text("whole or not at all")
        ...     os.listdir(folder)
        ['report.txt']
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with atomic(path) as draft:
        draft.write_text(text, encoding="utf-8")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; at the end of the `with` block it is renamed to `path`, unless the block fails.

    Raises:
        ConfigurationError: `path` exists and is not an empty folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with new_folder(Path(folder) / "model") as draft:
        ...         _ = (draft / "config.json").write_text("{}")
        ...     os.listdir(folder)
        ['model']
    """
    path = Path(path)
    if os.path.lexists(path) and (path.is_symlink() or not path.is_dir() or any(path.iterdir())):
        raise ConfigurationError(f"{path} exists and is not an empty folder: choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        remove(draft)
        draft.mkdir()
        yield draft
        for file in draft.iterdir():
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())
        if path.is_dir():
            path.rmdir()
        draft.rename(path)
    finally:
        remove(draft)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Return the folder of the cache, `${ATTNKIT_CACHE:-~/.cache/attnkit}`; it need not exist."""
    return Path(os.environ.get("ATTNKIT_CACHE") or "~/.cache/attnkit").expanduser()


def code_version() -> str:
    """Return a hash of the names, times and sizes of attnkit's files, which changes with its code."""
    package, stamps = Path(__file__).parent, []
    for folder, _, names in os.walk(package):
        if not folder.endswith("__pycache__"):
            files = (os.path.join(folder, name) for name in names)
            stamps += [stamp(file) for file in files if os.path.isfile(file)]  # an editor's lock file may be a dangling link
    return hashlib.sha256("\n".join(sorted(stamps)).encode()).hexdigest()[:16]


def stamp(file: str) -> str:
    """Return a file's name, modification time and size."""
    status = os.stat(file)
    return f"{file} {status.st_mtime_ns} {status.st_size}"


def unpacked_limit(size: int) -> int:
    """Return the number of bytes to which a compressed file of this size may expand."""
    return max(UNPACKED, RATIO * size)


def too_large(path: str | Path) -> ConfigurationError:
    """Return the error for a file that expands beyond its limit."""
    return ConfigurationError(
        f"{path} unpacks to more than {UNPACKED >> 20} MB and {RATIO} times its size, like a decompression bomb; unpack it by hand "
        f"if you trust it"
    )


class _Unpacked(io.RawIOBase):
    """The content of a gzip file, up to its limit."""

    def __init__(self, path: Path) -> None:
        self._path, self._stream = path, gzip.open(path)  # noqa: SIM115 -- `close` closes it
        self._left = unpacked_limit(path.stat().st_size)

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        read = self._stream.readinto(buffer)
        self._left -= read
        if self._left < 0:
            raise too_large(self._path)
        return read

    @override
    def close(self) -> None:
        self._stream.close()
        super().close()


def open_gzip(path: str | Path) -> BinaryIO:
    """Open a gzip file as a stream that raises a `ConfigurationError` beyond `unpacked_limit`."""
    return io.BufferedReader(_Unpacked(regular(path)), 1 << 20)


def read_gzip(path: str | Path) -> bytes:
    """Return the content of a gzip file; raise a `ConfigurationError` if it is truncated, damaged, or expands beyond `unpacked_limit`."""
    try:
        with open_gzip(path) as stream:
            return stream.read()
    except (EOFError, OSError, zlib.error) as error:
        raise ConfigurationError(f"{path} is truncated, damaged or not compressed by gzip ({error})") from error


def read_member(path: str | Path, name: str) -> bytes:
    """Read a file in a zip archive without unpacking it to disk; raise a `ConfigurationError` if it is missing, damaged, or too large."""
    try:
        with zipfile.ZipFile(regular(path)) as archive:
            if archive.getinfo(name).file_size > unpacked_limit(Path(path).stat().st_size):  # at most this much is read
                raise too_large(path)
            return archive.read(name)
    except ConfigurationError:
        raise
    except Exception as error:  # zipfile, zlib and lzma raise their own errors, encryption and unknown methods others still
        raise ConfigurationError(f"{path} is damaged, or has no {name} ({error})") from error


def short_path(path: str) -> str:
    """Return `path` relative to the working directory if it is inside it."""
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path


def files_at(location: str) -> list[str]:
    """Return the files that match a pattern or are below a folder, in alphabetical order."""
    if os.path.isdir(location):
        found = [os.path.join(folder, name) for folder, _, names in os.walk(location) for name in names if not name.startswith(".")]
    else:
        found = glob(location, recursive=True)
    return sorted(found)


def search(location: str) -> list[str]:
    """Return `files_at(location)`, and raise an audit event for those who record which data is read."""
    found = files_at(location)
    sys.audit(SEARCHED, location, found)
    return found
