"""Installed packages: their folders, and the distributions that provide them. No torch."""

import os
import sys
import sysconfig
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

PACKAGE = Path(__file__).parent
_PATHS = sysconfig.get_paths()
_FOLDERS = ("site-packages", "dist-packages")  # names of package folders, such as the user's or the system's besides this environment's
INSTALLED = tuple(
    f"{folder}{os.sep}"
    for folder in dict.fromkeys(
        [*(_PATHS[n] for n in ("stdlib", "platstdlib", "purelib", "platlib")), *(p for p in sys.path if os.path.basename(p) in _FOLDERS)]
    )
)
"""The folders of Python and of installed packages, whose versions are recorded instead of hashes."""
OTHERS = (f"{PACKAGE}{os.sep}", *INSTALLED)
"""The folders of code that is not the user's own: attnkit's, too."""

distributions = cache(packages_distributions)  # reading which packages are installed takes a second
