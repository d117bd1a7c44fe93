"""Folders of installed packages."""

import subprocess
import sys
from pathlib import Path


def test_packages_in_any_site_folder_count_as_installed(tmp_path: Path) -> None:
    """Such as those of `pip install --user`, and of a system beside a virtual environment."""
    place = tmp_path / "lib" / "site-packages"
    place.mkdir(parents=True)
    program = (
        f"import sys; sys.path.append({str(place)!r}); from attnkit.installed import INSTALLED; "
        f"print({str(place / 'x.py')!r}.startswith(INSTALLED))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "True\n"
