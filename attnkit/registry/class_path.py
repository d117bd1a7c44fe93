"""Classes by their import path, such as `my_package.kernels.Gaussian`."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from attnkit.registry.errors import ConfigurationError, nearest

_may_import: ContextVar[bool] = ContextVar("may_import", default=True)


@contextmanager
def importing(allowed: bool) -> Iterator[None]:
    """Allow or forbid class paths to import modules inside the `with` block; outside such a block they may.

    Code that reads untrusted specs, such as those of checkpoints, forbids it: a class path must then refer to a class of a module that
    is already imported.

    Example:
        >>> import attnkit
        >>> with importing(False):
        ...     attnkit.norms.get("antigravity.Norm")
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: 'antigravity.Norm' is a class of a module that is not imported, and ...
    """
    token = _may_import.set(allowed)
    try:
        yield
    finally:
        _may_import.reset(token)


def find(path: str, *, may_import: bool | None = None) -> Any:
    """Return the object at an import path, importing its module if allowed (default: as set by `importing`). Nested classes work too."""
    if not all(part.isidentifier() for part in path.split(".")):
        raise ConfigurationError(f"{path!r} is not a class path: write module and class, as in my_package.my_module.MyClass")
    may_import = _may_import.get() if may_import is None else may_import
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        module = import_if_there(name, f"{name!r} of the class path {path!r}") if may_import else sys.modules.get(name)
        if module is not None:
            return _inside(module, parts[end:], path, is_static=not may_import)
    if not may_import:
        raise ConfigurationError(
            f"{path!r} is a class of a module that is not imported, and specs read from a file may not import modules: "
            f"if you trust it, `import {'.'.join(parts[:-1])}` first (on the command line: --imports {'.'.join(parts[:-1])})"
        )
    raise ConfigurationError(
        f"there is no module {'.'.join(parts[:-1])!r} for the class path {path!r}: is it installed, or is its folder in PYTHONPATH?"
    )


def import_if_there(name: str, label: str) -> ModuleType | None:
    """Import a module, or return None if there is none; raise if it fails, giving the line. Messages call it `label`."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # importing a module may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigurationError(
            f"the module {label} cannot be imported: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        ) from error


def _inside(module: ModuleType, names: list[str], path: str, *, is_static: bool) -> Any:
    found: Any = module
    for name in names:
        inner: dict[str, Any] = getattr(found, "__dict__", {})
        # getattr on a module may import others, so `is_static` reads its __dict__
        if (named := inner.get(name) if is_static else getattr(found, name, None)) is None:
            known = [n for n, value in inner.items() if isinstance(value, type)]
            kind = "class" if name == names[-1] else "module or class"
            raise ConfigurationError(
                f"{getattr(found, '__name__', found)} has no {kind} {name!r}, which {path!r} names.{nearest(name, known)}"
            )
        found = named
    return found


def check_class(found: Any, path: str, *, family: str, bases: tuple[str, ...]) -> type:
    """Return `found`, the object at `path`, if it is a class that can be a component of the family, and inherits from one of `bases`."""
    if not isinstance(found, type):
        raise ConfigurationError(f"{path!r} is not a class but a {type(found).__name__}; write module and class")
    if bases and not issubclass(found, tuple(find(base, may_import=True) for base in bases)):
        raise ConfigurationError(f"{path!r} cannot be used as {family}: the class must inherit from {' or '.join(bases)}")
    if inspect.isabstract(found):
        raise ConfigurationError(
            f"{path!r} cannot be built: it does not define {', '.join(sorted(getattr(found, '__abstractmethods__', ())))}"
        )
    if "name" in inspect.signature(found).parameters:
        raise ConfigurationError(f"{path!r} has an argument called 'name', which a spec uses for the name of the component; rename it")
    return found
