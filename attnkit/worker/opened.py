"""Tracks the data files that this process reads, and the folders and patterns that it searches for them, with digests. No torch."""

import os
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from attnkit.files import SEARCHED, short_path
from attnkit.installed import INSTALLED, OTHERS
from attnkit.worker.sources import THEN, UNKNOWN, State, digest, digest_of_names, state_of

SETTINGS = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
NO_DATA = (os.path.join(SETTINGS, ""), "/proc/", "/sys/", "/dev/", "/etc/", "/usr/share/zoneinfo/", "/usr/share/locale/", *OTHERS)
LOGGERS = ("lightning.pytorch.loggers.", "lightning.fabric.loggers.", "attnkit.worker.loggers", "attnkit.train.logs")
NO_DATA_ENDS = (".py", ".pyc", ".so", ".pth")

_read: dict[str, State] = {}  # the modification time and size of each file when it was first opened
_written: set[str] = set()
_searched: dict[str, str] = {}  # a digest of the file names found at each folder or pattern searched
_first: dict[str, str] = {}  # the first digest of each file, if the file had not changed since it was opened


def watch() -> None:
    """Record each file that this process opens from now on, and forget those opened before."""
    _hook()
    for noted in (_read, _written, _searched, _first):
        noted.clear()


@cache
def _hook() -> None:
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if arguments[2] & (os.O_WRONLY | os.O_RDWR):
            _written.add(path)
        elif path not in _read and not _is_logging():
            _read[path] = state_of(path)
    elif event == SEARCHED:
        path, names = os.path.abspath(arguments[0]), digest_of_names(arguments[1])
        first = _searched.setdefault(path, names).partition(THEN)[0]
        _searched[path] = names if names == first else f"{first}{THEN}{names}"


def _is_logging() -> bool:
    """Return whether a logger is calling: the files that it reads, such as its earlier records or a Git commit, are not data."""
    frame = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(LOGGERS):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def digests(*, without: Collection[str | Path]) -> dict[str, str]:
    """Return hashes of the files that were read but not written, by path, relative to the current folder if inside it.

    A pattern, or a folder of images, has a hash of the names of its files.

    Files in the folders `without`, such as the process's own folder and caches, are not data. The hash is that of the file as first read.
    If its content has changed since, it is unknown which version a process that reads it piece by piece has seen. Both hashes are then
    recorded together, which no file matches, so the run counts as made with other data.
    """
    skipped = (*NO_DATA, *(os.path.join(folder, "") for folder in without))
    code = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    files = (f for f in sorted(_read.keys() - _written - code) if not f.startswith(skipped) and not f.endswith(NO_DATA_ENDS))
    inside = (f for f in files if os.path.isfile(f) and not any(p.endswith(("-info", ".egg")) for p in Path(f).parts))
    searched = {short_path(place): names for place, names in _searched.items() if not place.startswith(skipped)}
    return {short_path(file): _digest_of(file) for file in inside} | searched


def packages_read() -> set[str]:
    """Return the top-level names of the installed packages of which this process read data files: their versions stand for the files."""
    files = [file for file in _read if not file.endswith(NO_DATA_ENDS)]
    return {file[len(folder) :].partition(os.sep)[0] for file in files for folder in INSTALLED if file.startswith(folder)}


def _digest_of(file: str) -> str:
    now = digest(file)
    if state_of(file) == _read[file]:
        return _first.setdefault(file, now)
    first = _first.get(file, UNKNOWN)
    return now if now == first else f"{first}{THEN}{now}"
