"""An on-disk cache for results computed from texts; entries are named by a hash of everything they depend on.

The folder is `${ATTNKIT_CACHE:-~/.cache/attnkit}`. It may be deleted at any time.
"""

import atexit
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from attnkit import __version__
from attnkit.corpus.fingerprint import Fingerprint, fingerprint
from attnkit.files import LARGEST_JSON, cache_folder, parse_json, read_text, remove
from attnkit.installed import distributions
from attnkit.own_code import source_files
from attnkit.registry import ConfigurationError, tokenizers
from attnkit.tokenizer import SymbolTokenizer, Tokenizer

T = TypeVar("T")

_UNKNOWN = "unknown "
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cached(kind: str, depends_on: Any, *, code: Iterable[type] = (), write: Callable[[Path], None], read: Callable[[Path], T]) -> T:
    """Return a cached result, computing it first if necessary.

    An entry is a folder that is renamed once complete, so incomplete entries are never read, and processes that write the same entry at the
    same time do not conflict. An entry that `read` rejects with a ValueError or an OSError is rebuilt, with a warning.
    `depends_on` is plain data, to which the versions of attnkit, `tokenizers` and Unicode and the sources of the classes `code` are added.
    An entry of unknown sources is removed when this process ends, since no other can find it.
    """
    hashes = [sources(cls) for cls in code]
    named = json.dumps([__version__, version("tokenizers"), unicodedata.unidata_version, *hashes, depends_on], sort_keys=True)
    folder = cache_folder() / kind / hashlib.sha256(named.encode()).hexdigest()
    if any(found.startswith(_UNKNOWN) for found in hashes):
        atexit.register(_remove_own, folder, os.getpid())
    if os.path.lexists(folder):
        try:
            return _entry(folder, read)
        except (ValueError, OSError) as error:
            warnings.warn(f"the cache entry {folder} is damaged ({error}) and will be rebuilt", stacklevel=2)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name[:8]}.", dir=folder.parent))
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to the cache folder {folder.parent} ({error.strerror}): set ATTNKIT_CACHE to a writable folder"
        ) from error
    try:
        write(draft)
        own = draft.stat().st_ino
        _place(draft, folder, read)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise ConfigurationError(
            f"the cache folder {folder.parent} is full ({error.strerror}): delete entries, or set ATTNKIT_CACHE to another folder"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    try:
        return read(folder)
    except (ValueError, OSError):
        if folder.exists() and folder.stat().st_ino == own:
            raise
    return cached(kind, depends_on, code=code, write=write, read=read)  # another process has just replaced it


def _remove_own(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not in a fork
        shutil.rmtree(folder, ignore_errors=True)


def cached_of(
    kind: str,
    texts: Callable[[], Iterable[str]],
    depends_on: Any,
    *,
    code: Iterable[type] = (),
    write: Callable[[Path, Iterator[str]], None],
    read: Callable[[Path], T],
) -> T:
    """Return a cached result that is computed from texts, and named by their hash too; see `cached`.

    `texts` is called once for the hash, and again if the result must be computed. They must be the same both times: otherwise the entry
    would be named by texts that it was not computed from, and a `ConfigurationError` says so.
    """
    expected = fingerprint(texts())

    def written(folder: Path) -> None:
        found = Fingerprint()
        cells = found.of(texts())
        write(folder, cells)
        for _ in cells:  # what `write` has left
            pass
        if found.value != expected:
            raise ConfigurationError(
                "the texts changed while they were read: run again once their files no longer change (a corpus of your own must return the "
                "same texts on each call)"
            )

    return cached(kind, [depends_on, expected], code=code, write=written, read=read)


def _entry(folder: Path, read: Callable[[Path], T]) -> T:
    if folder.is_symlink():
        raise ValueError("it is a symbolic link")
    return read(folder)


def _place(draft: Path, folder: Path, read: Callable[[Path], Any]) -> None:
    """Give a complete entry its name. That of another process is kept, unless it is damaged."""
    with suppress(OSError):
        draft.rename(folder)
        return
    with suppress(ValueError, OSError):
        _entry(folder, read)
        return
    aside = draft.with_name(f"{draft.name}.damaged")  # moved first, so that no process reads or removes a part of it
    with suppress(FileNotFoundError):
        folder.rename(aside)
    remove(aside)  # a link itself, not its target
    try:
        draft.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was faster, and its entry is just as good
            raise


@cache
def sources(cls: type) -> str:
    """Return a hash of the code of a class: the modules of it and its bases, their neighbours, and the modules that these import.

    Installed packages count by their versions. If it is unknown which code was imported, the result is unique.
    """
    found = source_files(cls, beside=True)
    if found is None:
        return f"{_UNKNOWN}{uuid4()}"
    files, packages = found
    hashes = [hashlib.sha256(one.read_bytes()).digest() for one in sorted(files)]
    owners = distributions() if packages - {"attnkit", *sys.stdlib_module_names} else {}
    versions = [f"{one} {version(one)}" for package in sorted(packages) for one in sorted(set(owners.get(package, ())))]
    return hashlib.sha256(b"".join(hashes) + json.dumps(versions).encode()).hexdigest()[:16]


def trained(tokenizer: Tokenizer, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """Return the tokenizer trained on `texts`, from the cache if it was trained on the same texts with the same settings before.

    Tokenizers that only count symbols are not cached: training them costs no more than hashing the texts. `texts` is called once for the
    hash, and again if the tokenizer must be trained. A trained tokenizer is returned unchanged.

    Example:
        >>> import attnkit
        >>> len(trained(attnkit.tokenizers.build("character"), lambda: ["banana"]))
        7
    """
    if tokenizer.trained:
        return tokenizer
    if isinstance(tokenizer, SymbolTokenizer):
        return tokenizer.train(texts())

    def write(folder: Path, cells: Iterator[str]) -> None:
        (folder / "spec.json").write_text(json.dumps(tokenizer.train(cells).spec), encoding="utf-8")

    def read(folder: Path) -> Tokenizer:
        spec = parse_json(read_text(folder / "spec.json", limit=LARGEST_JSON))
        settings = {key: value for key, value in tokenizer.spec.items() if value is not None}  # None values are learned
        if not isinstance(spec, dict) or any(spec.get(key) != value for key, value in settings.items()):
            raise ValueError("it contains another tokenizer")
        found: Tokenizer = tokenizers.build(spec)
        if not found.trained:
            raise ValueError("it contains no trained tokenizer")
        return found

    return cached_of("tokenizers", texts, tokenizer.spec, code=[type(tokenizer)], write=write, read=read)
