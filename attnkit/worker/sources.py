"""The user's own modules, on which results also depend. No torch."""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

_PATHS = sysconfig.get_paths()
OTHERS = tuple(
    f"{path}{os.sep}" for path in (Path(__file__).parents[1], *(_PATHS[n] for n in ("stdlib", "platstdlib", "purelib", "platlib")))
)
"""The folders of attnkit, of Python and of installed packages, whose versions are recorded elsewhere."""


def own_sources() -> dict[str, str]:
    """Return the files of the modules that this process has imported from elsewhere, with the hashes of their content."""
    files = {str(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    return {file: _hash(file) for file in sorted(files) if not file.startswith(OTHERS) and Path(file).is_file()}


def unchanged(sources: Mapping[str, str]) -> bool:
    """Return whether the content of the files is unchanged."""
    return all(Path(file).is_file() and _hash(file) == content for file, content in sources.items())


def _hash(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
