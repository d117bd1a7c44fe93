"""Image decoding with pillow."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnkit.corpus.media import Stored, Unreadable
from attnkit.registry import ConfigurationError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
"""The formats that a file may have, whatever its suffix. Other formats are refused: for EPS, for example, pillow runs another program."""

MAX_PIXELS = 1 << 25  # maximum pixels of an image file


class ImageDecoder:
    """Decodes images and converts them to one shape.

    Args:
        shape: Channels, height and width (default: those of the first image; the others must then have its height and width, and be
            greyscale if it is).

    Attributes:
        notes: The number of converted images, by the kind of change.
    """

    def __init__(self, shape: Sequence[int] | None) -> None:
        self.notes: Counter[str] = Counter()
        self._shape, self._resizes = shape, shape is not None

    def __call__(self, file: Stored) -> Tensor:
        """Return an image [C, H, W] uint8; raise `Unreadable` if it cannot be used."""
        try:
            image = _opened(file)
            own = [1 if image.mode in ("1", "L", "LA") else 3, image.height, image.width]
            channels, height, width = self._shape or own
            image = image.convert("L" if channels == 1 else "RGB")
        except (ConfigurationError, Unreadable):
            raise
        except Exception as error:  # each of pillow's formats raises its own errors, including SyntaxError
            raise Unreadable(f"it is damaged, or not an image ({error})") from error
        self._shape = [channels, height, width]
        if own[0] > channels:
            if not self._resizes:
                raise ConfigurationError(
                    f"{file.name} is in colour, but the first image is greyscale; set image_shape: [3, {height}, {width}] to read all in "
                    f"colour, or [1, {height}, {width}] for greyscale"
                )
            self.notes["converted to greyscale"] += 1
        if own[1:] != [height, width]:
            if not self._resizes:
                raise ConfigurationError(
                    f"{file.name} has {own[1]} x {own[2]} pixels, but the first image has {height} x {width}; "
                    f"to resize all, set image_shape: [{channels}, HEIGHT, WIDTH]"
                )
            image = image.resize((width, height), resample=2)  # bilinear
            self.notes[f"resized to {height} x {width}"] += 1
        return torch.from_numpy(np.array(image, np.uint8)).view(height, width, channels).permute(2, 0, 1)


def _opened(file: Stored) -> Any:
    """Return a pillow image with 8 bits per channel, upright as its EXIF data say."""
    try:
        pillow = import_module("PIL.Image")
    except ImportError as error:
        raise ConfigurationError(
            f"{file.name}: image files need the package pillow: pip install 'attnkit[images]'. Arrays (.npz) do not"
        ) from error
    with file.open() as opened:
        image = pillow.open(opened, formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels are more than {MAX_PIXELS:,}")
        image.load()
    if image.mode in ("I", "F"):
        raise ValueError("pillow reads its pixels as 32-bit numbers: save it with 8 bits")
    with suppress(Exception):  # damaged EXIF data do not make an image unusable
        image = import_module("PIL.ImageOps").exif_transpose(image)
    return pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if image.mode.startswith("I;16") else image
