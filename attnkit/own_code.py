"""The source files behind a class: those of its module and its bases, and of what these import. No torch."""

import ast
import hashlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

from attnkit import _BEGAN
from attnkit.installed import INSTALLED, OTHERS, PACKAGE


def source_files(cls: type, *, beside: bool = False) -> tuple[set[Path], set[str]] | None:
    """Return the source files behind a class, and the names of the installed packages that they import.

    The files of attnkit, Python and packages are followed no further. The result is None if it is unknown which code was imported, since a
    file has changed after attnkit was, or there is no file, as in a notebook or an archive.

    Args:
        cls: The class, or a function that is registered as one.
        beside: Whether to include the files beside its module, of which it may import some by any name.
    """
    modules = {c.__module__: getattr(sys.modules.get(c.__module__), "__file__", None) for c in getattr(cls, "__mro__", (cls,))}
    files = {name: file for name, file in modules.items() if not _is_python(name, file)}
    packages = {name.partition(".")[0] for name, file in files.items() if file and file.startswith(INSTALLED)}
    found = {one for file in files.values() if file for one in (Path(file), *(Path(file).parent.glob("*.py") if beside else ()))}
    left = [*found]
    while left:
        imported = dict(_imported(left.pop()))
        packages |= {name.partition(".")[0] for name, file in imported.items() if str(file).startswith(INSTALLED)}
        further = {file for file in imported.values() if not str(file).startswith(OTHERS)} - found
        found |= further
        left += further
    found = {one for one in found if one.is_file()}
    if not all(file and Path(file) in found for file in files.values()) or any(one.stat().st_ctime_ns > _BEGAN for one in found):
        return None
    return found, packages


@cache
def code_hash(cls: type) -> str | None:
    """Return a hash of the user's own files behind a class, wherever they lie; None if it has none, or they are unknown."""
    if str(getattr(sys.modules.get(cls.__module__), "__file__", None)).startswith(OTHERS):
        return None
    try:
        found = source_files(cls)
        hashes = [hashlib.sha256(one.read_bytes()).digest() for one in (found or [set()])[0] if not str(one).startswith(OTHERS)]
    except OSError:  # a checkpoint is worth more than its hashes
        return None
    return None if found is None else hashlib.sha256(b"".join(sorted(hashes))).hexdigest()[:16]


def _is_python(module: str, file: str | None) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names and (file is None or file.startswith(INSTALLED))


def _imported(file: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names and files of modules that a file imports, unless it belongs to attnkit, Python or a package."""
    if file.suffix != ".py" or str(file).startswith(OTHERS) or not file.is_file():
        return
    state = file.stat()
    for level, module, names in _statements(file, state.st_mtime_ns, state.st_size):
        if level:
            place = Path(*file.parts[:-level], *filter(None, module.split(".")))
            files = [one for name in names for one in (place / f"{name}.py", place / name / "__init__.py")]
            files += [place / "__init__.py", *([place.with_name(f"{place.name}.py")] if module else [])]
            yield from ((str(one), one) for one in files if one.is_file())
            continue
        package = _file_of(module)
        inner = names if package is None or (package.name.startswith("__init__.") and not str(package).startswith(OTHERS)) else []
        for name, other in [(module, package), *((one, _file_of(one)) for one in (f"{module}.{name}" for name in inner))]:
            if other is not None:
                yield name, other


def _file_of(module: str) -> Path | None:
    loaded = getattr(sys.modules.get(module), "__file__", None)
    return Path(loaded) if loaded else source_of(module, sys.path)  # a function may import it later


@cache
def _statements(file: Path, *_state: int) -> list[tuple[int, str, list[str]]]:
    """Return the imports in a file: the number of dots, the module, and the names that are imported from it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes, which would be an error if warnings are
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # a neighbouring file that nothing imports
        return []
    found: list[tuple[int, str, list[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or "", [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            found += [(0, alias.name, []) for alias in node.names]
    return found


def source_of(module: str, path: Sequence[str] | None = None) -> Path | None:
    """Return the file that a module would be imported from now; None if there is none. Nothing is imported.

    Args:
        module: The name of the module.
        path: The folders to search first (default: those of a worker, which begin with the current one).

    Example:
        >>> source_of("attnkit.registry").name, source_of("json.decoder").name, source_of("attnkit.nowhere")
        ('__init__.py', 'decoder.py', None)
    """
    top, *inner = module.split(".")
    if top == "attnkit":
        return next(_candidates(PACKAGE, inner), None)
    try:
        spec = PathFinder.find_spec(top, [os.getcwd(), *sys.path] if path is None else path) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not inner and spec.origin:
        return Path(spec.origin) if os.path.isfile(spec.origin) else None
    return next((file for folder in spec.submodule_search_locations or () for file in _candidates(Path(folder), inner)), None)


def _candidates(folder: Path, inner: list[str]) -> Iterator[Path]:
    place = folder.joinpath(*inner)
    ends = (*EXTENSION_SUFFIXES, ".py")  # in Python's order of precedence
    names = [*(place / f"__init__{end}" for end in ends), *(place.with_name(place.name + end) for end in ends)]
    return (file for file in names if file.is_file())
