"""The user's own modules: results depend on them, too. No torch."""

import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

OTHERS = tuple({str(Path(__file__).parents[1]), *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))})
"""The folders of attnkit, of Python and of installed packages, whose versions are recorded elsewhere."""


def own_sources() -> dict[str, int]:
    """Return the files of the modules that this process has imported from elsewhere, with the times of their last change (in ns)."""
    files = {str(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    return {file: Path(file).stat().st_mtime_ns for file in sorted(files) if not file.startswith(OTHERS) and Path(file).is_file()}


def unchanged(sources: Mapping[str, int]) -> bool:
    """Return whether files are as they were."""
    return all(Path(file).is_file() and Path(file).stat().st_mtime_ns == time for file, time in sources.items())
