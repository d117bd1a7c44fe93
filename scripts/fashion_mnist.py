"""Write Fashion-MNIST for the corpus `fashion_mnist`, as two `.npz` files.

The source is Debian's package `dataset-fashion-mnist`, which contains compressed idx files. It is downloaded unless it is already unpacked
or installed.
"""

import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from fetching import main, package_file

from attnkit.files import open_gzip
from attnkit.registry import ConfigurationError

PACKAGE = "dataset-fashion-mnist"
FOLDER = "usr/share/datasets/fashion-mnist"


def convert(folder: Path) -> None:
    """Write the images and their labels."""
    for part, prefix in (("train", "train"), ("test", "t10k")):
        names = [f"{FOLDER}/{prefix}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
        images, labels = (read_idx(package_file(PACKAGE, name, folder)) for name in names)
        if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1] or len(labels) == 0:
            raise ConfigurationError(f"{names[0]}: images {list(images.shape)} and labels {list(labels.shape)} do not match")
        path = folder / "fashion_mnist" / f"{part}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, images=images, labels=labels)


def read_idx(path: Path) -> Any:
    """Read a compressed idx file of bytes (http://yann.lecun.com/exdb/mnist) as a uint8 array of the file's shape.

    Raises:
        ConfigurationError: The file is truncated or damaged, or has another format.
    """
    try:
        with open_gzip(path) as stream:
            content = stream.read()
    except (EOFError, OSError, zlib.error) as error:
        raise ConfigurationError(f"{path} is truncated, damaged or not compressed by gzip ({error})") from error
    axes = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, 4 + 4 * axes, 4)]
    if not axes or len(content) != 4 + 4 * axes + math.prod(shape):
        raise ConfigurationError(f"{path} is truncated, or not an idx file of bytes")
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


if __name__ == "__main__":
    main(convert)
