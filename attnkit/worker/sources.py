"""Digests of source files: of modules that this process has imported, and the current ones of modules that a run imported. No torch.

A file may be edited while modules are imported, which takes seconds. Its state is therefore noted when its module is executed; if the state
differs when the file is hashed, it is unknown which content was imported.
"""

import hashlib
import os
import platform
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from attnkit import _BEGAN
from attnkit.files import short_path
from attnkit.installed import INSTALLED, OTHERS, distributions

_imported: dict[str, str] = {}  # digests of source files from when this process, or its parent before forking, first saw them imported


UNKNOWN = "unknown"  # recorded for a file that changed after it was read and before it was hashed
THEN = ", then "  # between the two hashes of a file that changed

State = tuple[int, int] | None  # the modification time and size of a file; None if missing or unknown

_executed: dict[str, State] = {}  # the state of each source file when its module was first executed


def watch_imports() -> None:
    """Note the states of source files imported from now on and before; if a file changed since this process began, its state is unknown."""
    if not _executed:
        for module in list(sys.modules.values()):
            if (file := getattr(module, "__file__", None)) is not None:
                _executed.setdefault(file, None if _changed_at(file) > _BEGAN else state_of(file))
        sys.addaudithook(_note)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "exec" and isinstance(arguments[0], CodeType) and arguments[0].co_name == "<module>":
        file = arguments[0].co_filename
        if file not in _executed:
            _executed[file] = state_of(file)


def _changed_at(file: str) -> int:
    try:
        return os.stat(file).st_ctime_ns
    except OSError:
        return 0


def state_of(file: str) -> State:
    """Return the modification time (ns) and size of a file; None if it does not exist."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size


def imported_digest(file: str) -> str:
    """Return a hash of the content with which a source file was imported; if it has changed since, one that no file can match."""
    found = digest(file)
    return found if _executed.get(file, state := state_of(file)) == state else f"{UNKNOWN}{THEN}{found}"


def digest(file: str | Path) -> str:
    """Return a hash of the content of a file, computed once per process unless the file's modification time or size changes."""
    status = os.stat(file)
    return _digest(os.fspath(file), status.st_mtime_ns, status.st_size)


@cache
def _digest(file: str, time: int, size: int) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]


def digest_of_names(files: Iterable[str]) -> str:
    """Return a hash of the names of files, independent of their order."""
    names = sorted(short_path(os.path.abspath(file)) for file in files)
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()[:16]


@cache
def _version(package: str) -> str:
    return version(package)


def packages(read: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of the installed packages that this process has imported, or `read` files of (top-level names), and Python's.

    A version is read when first needed, as a package's code is, and a fork keeps the versions that its parent had read.
    """
    files = ((name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items()) if "." not in name)
    names = {name for name, file in files if file and file.startswith(INSTALLED)} | set(read)
    found = sorted({package for name in names for package in distributions().get(name, ())} - {"attnkit"})
    return {"python": platform.python_version(), **{package: _version(package) for package in found}}


def own_sources(packages: Collection[str] = ()) -> dict[str, str]:
    """Return the files of the modules that this process has imported from outside attnkit, Python and its packages, with their hashes.

    Those of the installed `packages`, such as plugins, are included.
    """
    modules = [(key, getattr(module, "__file__", None)) for key, module in list(sys.modules.items())]
    files = {str(file) for key, file in modules if file and (not file.startswith(OTHERS) or key.partition(".")[0] in packages)}
    return {file: imported_digest(file) for file in sorted(files) if Path(file).is_file()}


def unchanged(sources: Mapping[str, str]) -> bool:
    """Return whether the content of the files is unchanged."""
    return all(Path(file).is_file() and digest(file) == content for file, content in sources.items())


def imported(packages: Collection[str], *, generated: str) -> dict[str, str]:
    """Return hashes, by module, of the sources that this process has imported from attnkit and from code that is not installed.

    A file is hashed only once, because a process that runs for hours still runs the code it started with. Modules under the top-level
    names `packages`, those of installed plugins, are included; code that torch generated is not, because it derives from the sources.
    """
    found, among, outside = {}, ("attnkit", *packages), (*INSTALLED, os.path.join(generated, ""))
    for key, module in sorted(sys.modules.items()):
        file, name = getattr(module, "__file__", None), _name(key, module)
        if file is None or name == "__main__" or key == "__mp_main__":
            continue
        if (not file.startswith(outside) or name.partition(".")[0] in among) and os.path.isfile(file):
            found[name] = _imported.setdefault(file, imported_digest(file))
    return found


def _name(key: str, module: ModuleType) -> str:
    spec = getattr(module, "__spec__", None)
    return key if spec is None else str(spec.name)  # a module may have several names in `sys.modules`
