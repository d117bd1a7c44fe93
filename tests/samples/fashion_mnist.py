"""A small Fashion-MNIST in the format of Debian's package dataset-fashion-mnist: a bar in each image, whose place is the class;
and its converted files."""

import gzip
from pathlib import Path

import numpy as np
from fashion_mnist import convert

FOLDER = "usr/share/datasets/fashion-mnist"


def write(folder: Path, train: int = 5200, test: int = 120) -> None:
    """Write the four files below `folder`, as `dpkg-deb -x` does. (5,000 of the training images are for validation.)"""
    rng = np.random.default_rng(0)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        labels = rng.integers(10, size=count, dtype=np.uint8)
        images = np.zeros((count, 28, 28), np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[4 + 2 * label : 6 + 2 * label, 6:22] = rng.integers(100, 256)
        write_idx(folder / FOLDER / f"{prefix}-images-idx3-ubyte.gz", images)
        write_idx(folder / FOLDER / f"{prefix}-labels-idx1-ubyte.gz", labels)
    convert(folder)


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write bytes as a compressed idx file."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes(), compresslevel=1))
