"""The data files that this process reads, with their digests. No torch."""

import os
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from attnkit.files import short_path
from attnkit.worker.sources import INSTALLED, PACKAGE, digest

NO_DATA = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/share/zoneinfo/", "/usr/share/locale/", f"{PACKAGE}{os.sep}", *INSTALLED)
NO_DATA_ENDS = (".py", ".pyc", ".so", ".pth")

_read: set[str] = set()
_written: set[str] = set()


def watch() -> None:
    """Note each file that this process opens from now on; those that it opened before are forgotten."""
    _hook()
    _read.clear()
    _written.clear()


@cache
def _hook() -> None:
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        (_written if arguments[2] & (os.O_WRONLY | os.O_RDWR) else _read).add(path)


def digests(*, without: Collection[str | Path]) -> dict[str, str]:
    """Return hashes of the files that were read and not written, by path; relative to the current folder if they are inside.

    Files in the folders `without` are no data: those of the process itself, and of caches.
    """
    skipped = (*NO_DATA, *(os.path.join(folder, "") for folder in without))
    code = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    files = (f for f in sorted(_read - _written - code) if not f.startswith(skipped) and not f.endswith(NO_DATA_ENDS))
    inside = (f for f in files if os.path.isfile(f) and not any(p.endswith(("-info", ".egg")) for p in Path(f).parts))
    return {short_path(file): digest(file) for file in inside}
