"""Hostile images."""

import os
import zipfile
from pathlib import Path

import numpy as np

from tests.hostile.files.writing import Shell, npy, png, text


def image_bomb(folder: Path) -> Path:
    """A PNG file of 5 kB with 250 million pixels."""
    return text(folder, "a.png", png(50_000, 5_000, bytes(5_000_000)))


def image_within_pillow(folder: Path) -> Path:
    """A PNG file with as many pixels as pillow does not mind."""
    return text(folder, "a.png", png(9_000, 9_000, bytes(9_001 * 9_000)))


def image_truncated(folder: Path) -> Path:
    """A PNG file that ends too soon."""
    return text(folder, "a.png", png(64, 64, bytes(65 * 64))[:60])


def image_postscript(folder: Path) -> Path:
    """PostScript under another name, for which pillow would run Ghostscript."""
    return text(folder, "a.png", "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(%pipe%touch $ATTNKIT_CANARY) (w) file\n")


def image_pipe(folder: Path) -> Path:
    """A folder with a pipe among its images."""
    os.mkfifo(folder / "a.png")
    return folder


def image_deep(folder: Path) -> Path:
    """300 folders inside each other."""
    (folder / Path(*["d"] * 300)).mkdir(parents=True)
    return folder


def images_bomb(folder: Path) -> Path:
    """A .npz file of 1 MB that unpacks to 256 MB."""
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("images.npy", "w") as file:
        file.write(npy(f"({1 << 12}, 256, 256)", "|u1"))
        for _ in range(16):
            file.write(bytes(16 << 20))
    return folder / "a.npz"


def images_header(folder: Path) -> Path:
    """A .npz file whose array is said to have a trillion rows."""
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("images.npy", npy("(1000000000000, 8, 8)", "|u1"))
    return folder / "a.npz"


def images_objects(folder: Path) -> Path:
    """A .npz file of Python objects: its reader would run a command."""
    np.savez(folder / "a.npz", images=np.array([Shell()], dtype=object))
    return folder / "a.npz"
