"""Random changes to training images: shifts, horizontal flips, and torchvision's transforms."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnkit.registry import ConfigurationError, nearest


class Augmentation:
    """Changes images at random. The change to an image is a pure function of the seed, the epoch and its index, in any process.

    Images are shifted by up to `shift` pixels in each direction (uncovered pixels are black), then flipped, then transformed.

    Example:
        >>> images = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
        >>> Augmentation(shift=1, seed=4)(images, torch.tensor([0]), epoch=0)[0, 0]
        tensor([[0, 0, 0],
                [0, 1, 2],
                [0, 4, 5]], dtype=torch.uint8)
    """

    def __init__(self, *, shift: int = 0, flip: bool = False, transforms: Sequence[str | Mapping[str, Any]] = (), seed: int = 0) -> None:
        if shift < 0:
            raise ConfigurationError(f"shift must be at least 0 pixels, but is {shift}")
        self.shift, self.flip, self.seed = shift, flip, seed
        self.transforms = [_transform(spec) for spec in transforms]
        self._drawn: tuple[tuple[int, int], Tensor, Tensor] | None = None  # the draws of the latest epoch

    def __call__(self, images: Tensor, indices: Tensor, *, epoch: int) -> Tensor:
        """Return `images[indices]`, augmented, [B, C, H, W]; `images` are all images, [N, C, H, W] uint8."""
        height, width = images.shape[2:]
        moves, flips = self._draw(len(images), epoch)
        down, right = moves[indices].unbind(1)  # [B]
        rows = torch.arange(height) - down[:, None]  # [B, H], the source row of each row
        columns = torch.arange(width) - right[:, None]  # [B, W]
        columns = torch.where(flips[indices][:, None], width - 1 - columns, columns)
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]  # [B, H, W]
        rows, columns = rows.clamp(0, height - 1)[:, None, :, None], columns.clamp(0, width - 1)[:, None, None]
        channels = torch.arange(images.shape[1])[:, None, None]
        changed = images[indices[:, None, None, None], channels, rows, columns] * inside[:, None]
        if not self.transforms:
            return changed
        return torch.stack([self._transformed(image, i, epoch) for image, i in zip(changed, indices.tolist(), strict=True)])

    def _draw(self, count: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the shifts [N, 2] and the flips [N] of an epoch."""
        if self._drawn is None or self._drawn[0] != (count, epoch):
            rng = np.random.default_rng([self.seed, epoch])
            moves = torch.from_numpy(rng.integers(-self.shift, self.shift, size=(count, 2), endpoint=True))
            self._drawn = ((count, epoch), moves, torch.from_numpy((rng.random(count) < 0.5) & self.flip))
        return self._drawn[1:]

    def _transformed(self, image: Tensor, index: int, epoch: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's global state
            torch.manual_seed(int(np.random.SeedSequence([self.seed, epoch, index]).generate_state(1)[0]))
            for name, transform in self.transforms:
                try:
                    image = transform(image)
                except (TypeError, ValueError, RuntimeError) as error:
                    raise ConfigurationError(
                        f"augmentation {name} failed on a single image, which is given without its label, as "
                        f"{getattr(image, 'dtype', type(image).__name__)}: {error}"
                    ) from error
        if (made := getattr(image, "dtype", type(image).__name__)) != torch.uint8:
            names = ", ".join(name for name, _ in self.transforms)
            raise ConfigurationError(
                f"augmentation must leave images as torch.uint8, which the data module then scales and normalises, but {names} made {made}"
            )
        return image


def _transform(spec: str | Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name of a transform, and the transform."""
    name, arguments = (spec, {}) if isinstance(spec, str) else (spec.get("name"), {k: v for k, v in spec.items() if k != "name"})
    try:
        library = import_module("torchvision.transforms.v2")
    except (ImportError, RuntimeError) as error:  # RuntimeError if built for another torch, such as a CUDA build with a CPU torch
        needed = "pip install 'attnkit[augmentation]'"
        if not isinstance(error, ModuleNotFoundError):
            needed = f"the installed one cannot be imported ({error}): install the build that matches this torch"
        raise ConfigurationError(
            f"augmentation {name!r} needs the package torchvision: {needed}. shift and flip work without it"
        ) from error
    names = [n for n in dir(library) if n[0].isupper()]
    if name not in names:
        raise ConfigurationError(f"torchvision.transforms.v2 has no {name!r}.{nearest(str(name), names)}")
    try:
        return str(name), getattr(library, name)(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"augmentation {name}: {error}") from error
