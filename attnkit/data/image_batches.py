"""Batches of images: normalised, augmented, and in which order."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from attnkit.data.augmentation import Augmentation
from attnkit.data.loading import BatchSampler
from attnkit.registry import ConfigurationError

Draw = tuple[list[int], int]  # the examples of a batch, and the epoch


class ImageBatch(TypedDict, total=False):
    """A batch of images, with labels but for prediction, and with their names but for training."""

    image: Tensor  # [B, C, H, W] float32, normalised
    label: Tensor  # [B] int64, the class
    text: list[str]  # the path of each image, or its index


class ImageExamples(Dataset[ImageBatch]):
    """Images in memory as bytes; an item is a whole batch, and its index the list of its examples and the epoch.

    Args:
        pixels: [N, C, H, W] uint8.
        labels: [N] int64; `None` in prediction.
        names: The name of each image; `None` in training.
        mean: Of each channel, from 0 to 1.
        std: Standard deviation of each channel.
        augmentation: What changes the images; `None` in evaluation.
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

    def __getitem__(self, draw: Draw) -> ImageBatch:
        indices, epoch = draw
        index = torch.as_tensor(indices)
        pixels = self.pixels[index] if self.augmentation is None else self.augmentation(self.pixels, index, epoch=epoch)
        batch: ImageBatch = {"image": (pixels.float() - self._mean) / self._std}
        if self.labels is not None:
            batch["label"] = self.labels[index]
        if self.names is not None:
            batch["text"] = [self.names[i] for i in indices]
        return batch


class ImageBatchSampler(BatchSampler):
    """Yields the examples of one batch after another, with the epoch: each example once per epoch, over all processes.

    There are equally many batches in every process, and their sizes differ by one at the most. The order is a pure function of seed and
    epoch.

    Args:
        examples: What to sample from.
        batch_size: Most images in a batch.
        order: `shuffled` anew in each epoch, for training; `fixed`, mixed in one way that is always the same, so that the first few
            batches are a fair sample; `given`, as they are.
        seed: Of the order, at least 0.
        num_replicas: How many processes share the examples.
        rank: Which of them this one is.

    Raises:
        ConfigurationError: There are too few examples for the processes.

    Example:
        >>> sampler = ImageBatchSampler(range(5), batch_size=2, order="given")
        >>> list(sampler)
        [([0, 1], 0), ([2, 3], 0), ([4], 0)]
    """

    def __init__(
        self,
        examples: Any,
        *,
        batch_size: int,
        order: Literal["shuffled", "fixed", "given"],
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(examples, num_replicas=num_replicas, rank=rank, shuffle=order == "shuffled", seed=seed)
        self.order = order
        self._count = len(examples)
        self._num_batches = -(-self._count // batch_size)
        self._num_batches += -self._num_batches % num_replicas
        if self._num_batches > self._count:
            raise ConfigurationError(
                f"{self._count} images in batches of batch_size={batch_size} cannot be dealt out evenly to {num_replicas} processes: "
                f"use fewer processes, or a larger batch_size"
            )

    @override
    def __len__(self) -> int:
        return self._num_batches // self.num_replicas

    @override
    def batches(self) -> Iterator[Draw]:
        rng = np.random.default_rng([self.seed, self.epoch if self.shuffle else 0])
        indices = np.arange(self._count) if self.order == "given" else rng.permutation(self._count)
        batches = np.array_split(indices, self._num_batches)
        for batch in batches[self.rank :: self.num_replicas]:
            yield batch.tolist(), self.epoch
