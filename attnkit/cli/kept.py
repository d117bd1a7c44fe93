"""Caches on disk texts that take seconds to compute and change only with the installation."""

import hashlib
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec

from attnkit import __version__
from attnkit.files import cache_folder, code_version, read_text, stamp, write_text
from attnkit.registry import ENTRY_POINT_GROUP, FAMILIES, ConfigurationError

LIBRARIES = ("torch", "lightning", "jsonargparse")
LARGEST = 1 << 24  # maximum bytes of a cached text


def kept(name: str, make: Callable[[], str]) -> str:
    """Return the text `make()`, cached as `name` while its dependencies are unchanged.

    These are attnkit's files, the versions of Python and of the described libraries, and the plugins. If the cache folder is not writable,
    the text is computed every time.
    """
    file = cache_folder() / "texts" / f"{name}-{_installation()}"
    with suppress(OSError, ConfigurationError):  # missing, or not text
        if text := read_text(file, limit=LARGEST):
            return text
    text = make()
    with suppress(OSError):
        for old in file.parent.glob(f"{name}-*"):
            old.unlink(missing_ok=True)
        write_text(file, text)
    return text


def _installation() -> str:
    """Return a hash of attnkit's files, the libraries and the plugins, without importing any."""
    parts = [__version__, code_version(), sys.version, *(f"{registry.attribute}: {registry.names()}" for registry in FAMILIES)]
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            parts.append(f"{library} {version(library)}")
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP)):
        spec = find_spec(point.module.partition(".")[0])
        parts += [f"{point.name} {point.value} {point.dist and point.dist.version}", stamp(spec.origin) if spec and spec.origin else ""]
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:16]
