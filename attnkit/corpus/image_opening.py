"""Images that pillow reads."""

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnkit.corpus.media import Stored, Unreadable
from attnkit.registry import ConfigurationError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
"""The formats that a file may contain, whatever its suffix. For EPS, for example, pillow would run another program."""

MAX_PIXELS = 1 << 25  # maximum pixels of an image file


def open_image(file: Stored) -> Any:
    """Return an image of pillow's with 8 bits per channel, as it is to be seen; raise `Unreadable` if it cannot be used."""
    pillow = _pillow(file.name)
    try:
        with file.open() as opened:
            image = pillow.open(opened, formats=FORMATS)
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {MAX_PIXELS:,}")
            image.load()
        if image.mode in ("I", "F"):
            raise ValueError("pillow reads its pixels as numbers of 32 bits: save it with 8")
        image = _upright(image)
        return pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if image.mode.startswith("I;16") else image
    except Unreadable:
        raise
    except Exception as error:  # each of pillow's formats raises its own errors, including SyntaxError
        raise Unreadable(f"damaged, or not an image ({error})") from error


def shape_of(image: Any) -> list[int]:
    """Return the channels, height and width of an image of pillow's."""
    return [1 if image.mode in ("1", "L", "LA") else 3, image.height, image.width]


def fitted(image: Any, shape: Sequence[int], notes: Counter[str]) -> Tensor:
    """Convert an image of pillow's to this shape [C, H, W], and note it if that loses its colours or its size."""
    channels, height, width = shape
    if shape_of(image)[0] > channels:
        notes["read in grey, without their colours"] += 1
    try:
        image = image.convert("L" if channels == 1 else "RGB")
    except Exception as error:
        raise Unreadable(f"damaged, or not an image ({error})") from error
    if (image.height, image.width) != (height, width):
        image = image.resize((width, height), resample=2)  # bilinear
        notes[f"resized to {height} x {width}"] += 1
    return torch.from_numpy(np.array(image, np.uint8)).view(height, width, channels).permute(2, 0, 1)


def _upright(image: Any) -> Any:
    """Return an image as it is to be seen, according to its EXIF data."""
    try:
        return import_module("PIL.ImageOps").exif_transpose(image)
    except Exception:  # damaged EXIF data do not make an image unusable
        return image


def _pillow(where: str) -> Any:
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise ConfigurationError(
            f"{where}: image files need the library pillow: pip install 'attnkit[images]'. Arrays (.npz) do not"
        ) from error
