"""Hostile word vectors."""

import os
import zlib
from pathlib import Path

import numpy as np

from tests.hostile.files.writing import Shell, npy, text


def vectors_count(folder: Path) -> Path:
    """word2vec's binary format, said to have a trillion words."""
    return text(folder, "a.bin", b"1000000000000 2\ncat " + bytes(8))


def vectors_digits(folder: Path) -> Path:
    """A number of words with more digits than Python converts."""
    return text(folder, "a.txt", "9" * 10_000 + " 2\n")


def vectors_endless_word(folder: Path) -> Path:
    """A binary file whose first word never ends."""
    path = text(folder, "a.bin", b"5 2\n")
    os.truncate(path, 4 << 30)
    return path


def vectors_endless_line(folder: Path) -> Path:
    """A text file that is one line of 4 GB, most of it a hole."""
    path = text(folder, "a.txt", b"cat 1")
    os.truncate(path, 4 << 30)
    return path


def vectors_columns(folder: Path) -> Path:
    """Lines with other numbers of columns."""
    return text(folder, "a.txt", "cat 1 2\ndog 1\n")


def vectors_nan(folder: Path) -> Path:
    """A number that is none."""
    return text(folder, "a.txt", "cat nan inf\n")


def vectors_overflow(folder: Path) -> Path:
    """A number that 64 bits hold and 32 do not."""
    return text(folder, "a.txt", "cat 1e300 1\n")


def vectors_bomb(folder: Path) -> Path:
    """260 MB in a gzip file of 1 MB."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    with (folder / "a.txt.gz").open("wb") as file:
        for _ in range(256):
            file.write(packer.compress((b"d" * 60_000 + b" 1 2\n") * 17))
        file.write(packer.flush())
    return folder / "a.txt.gz"


def vectors_objects(folder: Path) -> Path:
    """A .npy file of Python objects: its reader would run a command."""
    np.save(folder / "a.npy", np.array([[Shell(), Shell()]], dtype=object), allow_pickle=True)
    text(folder, "a.txt", "cat")
    return folder / "a.npy"


def vectors_header(folder: Path) -> Path:
    """A .npy file said to have a trillion rows."""
    text(folder, "a.txt", "cat")
    return text(folder, "a.npy", npy("(1000000000000, 2)"))


def vectors_negative(folder: Path) -> Path:
    """A .npy file with a negative number of rows."""
    text(folder, "a.txt", "cat")
    return text(folder, "a.npy", npy("(-1, 2)"))


def vectors_expression(folder: Path) -> Path:
    """A .npy file whose header is an expression."""
    text(folder, "a.txt", "cat")
    return text(folder, "a.npy", npy("__import__('os').system('touch \"$ATTNKIT_CANARY\"')"))
