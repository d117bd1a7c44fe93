"""Batches of images: normalisation, augmentation and order."""

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from attnkit.data.augmentation import Augmentation
from attnkit.data.batching import Order
from attnkit.data.loading import BatchSampler, Integers, Share
from attnkit.strategy.sharing import DataShare


class ImageBatch(TypedDict, total=False):
    """A batch of images, with labels except in prediction, and with their names except in training.

    A filler (`attnkit.data.loading.Share`) has an image, but no label and no name.
    """

    example: Tensor  # [B] int64: the index of each image; -1 for a filler
    image: Tensor  # [B, C, H, W] float32, normalised
    label: Tensor  # [B] int64, the class; [0] for a filler
    text: list[str]  # the path of each image, or its index


class ImageExamples(Dataset[ImageBatch]):
    """Images held in memory as bytes; an item is one process's part of a batch, and its index is a `Share`.

    Args:
        pixels: [N, C, H, W] uint8.
        labels: [N] int64; `None` in prediction.
        names: The name of each image; `None` in training.
        mean: Mean of each channel, from 0 to 1.
        std: Standard deviation of each channel.
        augmentation: Random changes of the images; `None` in evaluation.
    """

    def __init__(
        self,
        *,
        pixels: Tensor,
        labels: Tensor | None,
        names: Sequence[str] | None,
        mean: Sequence[float],
        std: Sequence[float],
        augmentation: Augmentation | None,
    ) -> None:
        self.pixels, self.labels, self.names, self.augmentation = pixels, labels, names, augmentation
        self._mean, self._std = (255 * torch.tensor(values).view(-1, 1, 1) for values in (mean, std))

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, share: Share) -> ImageBatch:
        index = torch.as_tensor(share.rows)
        pixels = self.pixels[index] if self.augmentation is None else self.augmentation(self.pixels, index, epoch=share.epoch)
        batch: ImageBatch = {"example": share.example(share.rows), "image": (pixels.float() - self._mean) / self._std}
        if self.labels is not None:
            batch["label"] = self.labels[torch.as_tensor(share.answered, dtype=torch.int64)]
        if self.names is not None:
            batch["text"] = [self.names[i] for i in share.answered]
        return batch


class ImageBatchSampler(BatchSampler):
    """Yields batches of examples: each example once per epoch over all processes.

    The sizes of batches differ by at most one, and all processes share each of them. The order is a pure function of seed and epoch.

    Args:
        examples: The examples to sample from.
        batch_size: Maximum number of images in a batch over all processes.
        order: `shuffled` in each epoch, for training; `fixed`, one random order that is always the same, so that the first few batches
            are a representative sample; `given`, unchanged.
        seed: Seed of the order, at least 0.
        share: This process's share of each batch (default: that of `torch.distributed` if it is initialised, else all of it).

    Example:
        >>> [share.rows.tolist() for share in ImageBatchSampler(range(5), batch_size=2, order="given")]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        examples: Any,
        *,
        batch_size: int,
        order: Order,
        seed: int = 0,
        share: DataShare | None = None,
    ) -> None:
        super().__init__(examples, share=share, shuffle=order == "shuffled", seed=seed)
        self.order = order
        self._count = len(examples)
        self.num_batches = -(-self._count // batch_size)

    @override
    def batches(self, rng: np.random.Generator) -> list[Integers]:
        indices = np.arange(self._count) if self.order == "given" else rng.permutation(self._count)
        return np.array_split(indices, self.num_batches)
