"""Image files and images of pillow, decoded one after another."""

from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnkit.corpus.tables import BadRows
from attnkit.files import regular
from attnkit.registry import ConfigurationError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
"""The formats that a file may contain, whatever its suffix. For EPS, for example, pillow would run another program."""

MAX_PIXELS = 1 << 25  # maximum pixels of an image file


class ImageDecoder:
    """Decodes images, and converts them to one shape.

    Args:
        shape: Channels, height and width (default: those of the first image; the others must then have its height and width, and no colour
            if it has none).
        bad: Those that cannot be decoded.

    Attributes:
        notes: How many images the conversion has changed, and how.
    """

    def __init__(self, shape: Sequence[int] | None, bad: BadRows | None = None) -> None:
        self.notes: Counter[str] = Counter()
        self._shape, self._resizes, self._bad = shape, shape is not None, BadRows() if bad is None else bad

    def __call__(self, name: str, read: Callable[[], Any]) -> Tensor | None:
        """Return the image of pillow that `read` returns, [C, H, W] uint8, or None if it is skipped; `name` is for messages."""
        try:
            image = read()
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {MAX_PIXELS:,}")
            image.load()
            if image.mode in ("I", "F"):
                raise ValueError("pillow reads its pixels as numbers of 32 bits: save it with 8")
            image = _upright(image)
            if image.mode.startswith("I;16"):
                image = pillow(name).fromarray((np.asarray(image) >> 8).astype(np.uint8))
            channels = 1 if image.mode in ("1", "L", "LA") else 3
            shape = [channels, image.height, image.width] if self._shape is None else self._shape
            image = image.convert("L" if shape[0] == 1 else "RGB")
        except Exception as error:  # each of pillow's formats raises its own errors, including SyntaxError
            self._bad.add(name, f"it is damaged, or not an image ({error})")
            return None
        self._shape = shape
        if channels > shape[0]:
            if not self._resizes:
                raise ConfigurationError(
                    f"{name} is in colour, the first image in grey; set image_shape: [3, {shape[1]}, {shape[2]}] to read all in colour, "
                    f"or [1, {shape[1]}, {shape[2]}] for grey"
                )
            self.notes["read in grey, without their colours"] += 1
        if (image.height, image.width) != tuple(shape[1:]):
            if not self._resizes:
                raise ConfigurationError(
                    f"{name} has {image.height} x {image.width} pixels, the first image {shape[1]} x {shape[2]}; "
                    f"to resize all, set image_shape: [{shape[0]}, HEIGHT, WIDTH]"
                )
            image = image.resize((shape[2], shape[1]), resample=2)  # bilinear
            self.notes[f"resized to {shape[1]} x {shape[2]}"] += 1
        return torch.from_numpy(np.array(image, np.uint8)).view(shape[1], shape[2], shape[0]).permute(2, 0, 1)

    def file(self, path: Path) -> Tensor | None:
        """Return the image in a file, likewise."""
        opener = pillow(str(path))
        return self(str(path), lambda: opener.open(regular(path), formats=FORMATS))


def _upright(image: Any) -> Any:
    """Return an image as it is to be seen, according to its EXIF data."""
    try:
        return import_module("PIL.ImageOps").exif_transpose(image)
    except Exception:  # damaged EXIF data do not make an image unusable
        return image


def pillow(where: str) -> Any:
    """Return the module `PIL.Image`, or raise, with what needs it and how to install it."""
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise ConfigurationError(
            f"{where}: image files need the library pillow: pip install 'attnkit[images]'. Arrays (.npz) do not"
        ) from error
