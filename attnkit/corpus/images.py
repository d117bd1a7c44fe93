"""Images as they are stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Images:
    """Images as they are stored.

    Attributes:
        pixels: [N, C, H, W] uint8.
        labels: The class of each image, by name or by number; None without labels.
        names: The name of each image: a path, or an index.
    """

    pixels: Tensor
    labels: Sequence[str] | Sequence[int] | None
    names: Sequence[str]

    def select(self, indices: Sequence[int]) -> "Images":
        """Return the images at these indices."""
        labels: Any = None if self.labels is None else [self.labels[i] for i in indices]
        return Images(self.pixels[torch.as_tensor(indices)], labels, [self.names[i] for i in indices])
