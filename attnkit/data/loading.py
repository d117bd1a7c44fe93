"""Loaders whose batches are a pure function of seed and epoch, whatever the number of processes and even after interruptions."""

import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, SequentialSampler
from typing_extensions import override

from attnkit.strategy.sharing import DataShare

Integers = npt.NDArray[np.int64]

FILLER = -1
"""The `example` of a filler row."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """One process's rows of a batch, which serve as the index of an item in attnkit's data sets.

    All processes share a batch, and each takes every `processes`-th row. All pad their rows to the longest row of the whole batch, so a row
    has the same shape with any number of processes.

    Every process must take every step. If the batch has fewer rows than there are processes, a process without a row gets a *filler*:
    a copy of the first row with nothing to score. Its `example` is -1, its targets are padding, and it has no label, text or references.

    Attributes:
        batch: The examples of the batch: their indices [B], or arrays of numbers [B, ...] that identify them.
        epoch: The epoch, on which training examples may depend; 0 if epochs do not differ.
        rank: Rank of this process.
        processes: Number of processes that share the batch.

    Example:
        >>> [Share(batch=[7, 8, 9, 5, 6], rank=rank, processes=3).rows for rank in range(3)]
        [[7, 5], [8, 6], [9]]
        >>> filler = Share(batch=[7], rank=2, processes=3)
        >>> filler.rows, filler.is_filler, filler.example(filler.rows)
        ([7], True, tensor([-1]))
    """

    batch: Any
    epoch: int = 0
    rank: int = 0
    processes: int = 1

    @property
    def is_filler(self) -> bool:
        """Whether the batch has no row for this process."""
        return self.rank >= len(self.batch)

    @property
    def rows(self) -> Any:
        """This process's part of `batch`, at least one row."""
        return self.batch[:1] if self.is_filler else self.batch[self.rank :: self.processes]

    @property
    def answered(self) -> Any:
        """The rows that have answers and texts: none for a filler."""
        return self.batch[:0] if self.is_filler else self.rows

    def example(self, numbers: Sequence[int] | Integers) -> Tensor:
        """Return the numbers of the examples in `rows` as a tensor, int64 [B]; -1 for a filler."""
        example = torch.as_tensor(numbers, dtype=torch.int64)
        return torch.full_like(example, FILLER) if self.is_filler else example


class BatchSampler(DistributedSampler[Any]):
    """Yields this process's share of each batch of an epoch; the next pass skips the first `start` batches.

    The batches of an epoch are the same with any number of processes. Lightning does not replace a `DistributedSampler`, and sets its
    epoch.

    Args:
        examples: The examples to sample from.
        shuffle: Whether epochs differ.
        seed: Seed of the order, at least 0.
        share: This process's share of each batch (default: that of `torch.distributed` if it is initialised, else all of it).

    Attributes:
        num_batches: Number of batches in an epoch, the same for all epochs.
        start: Number of batches that the next pass skips; `Task` sets it to the number that a resumed run has already trained on.

    Example:
        >>> class Pairs(BatchSampler):
        ...     num_batches = 3
        ...     def batches(self, rng):
        ...         return [[0, 1], [2, 3], [4]]
        >>> sampler = Pairs(range(5), shuffle=False, share=DataShare(2, 1))
        >>> sampler.start = 1
        >>> [(share.rows, share.is_filler) for share in sampler]
        [([3], False), ([4], True)]
        >>> len(list(sampler)), sampler.seen(2)[0]
        (3, 4)
    """

    num_batches: int
    start: int = 0
    _planned: tuple[int, Sequence[Any]] | None = None  # the latest epoch and its batches

    def __init__(self, examples: Any, *, shuffle: bool, seed: int = 0, share: DataShare | None = None) -> None:
        if share is None:
            is_shared = dist.is_available() and dist.is_initialized()
            share = DataShare(dist.get_world_size(), dist.get_rank()) if is_shared else DataShare(1, 0)
        super().__init__(examples, num_replicas=share.num_replicas, rank=share.rank, shuffle=shuffle, seed=seed)

    @override
    def __len__(self) -> int:
        return self.num_batches

    @abstractmethod
    def batches(self, rng: np.random.Generator) -> Sequence[Any]:
        """Return the batches of all processes in an epoch, drawn with `rng`."""

    @override
    def __iter__(self) -> Iterator[Share]:
        start, self.start = self.start, 0  # this counts as the next pass, even if no batch is taken
        epoch, batches = self._plan()
        return (Share(batch=batch, epoch=epoch, rank=self.rank, processes=self.num_replicas) for batch in batches[start:])

    def seen(self, count: int) -> tuple[int, int]:
        """Return the number of examples in the first `count` batches of the current epoch, and a checksum of these batches."""
        batches = [np.asarray(batch) for batch in self._plan()[1][:count]]
        checksum = 0
        for batch in batches:
            checksum = zlib.crc32(batch.astype("<i8").tobytes(), zlib.crc32(b"%d;" % len(batch), checksum))
        return sum(map(len, batches)), checksum

    @cached_property
    def content(self) -> int | None:
        """A checksum of the examples; None unless the data set's `content` returns the arrays that make them up."""
        if not hasattr(self.dataset, "content"):
            return None
        arrays = (np.ascontiguousarray(array) for array in self.dataset.content())
        return reduce(lambda checksum, array: zlib.crc32(array.data.cast("B") if array.size else b"", checksum), arrays, 0)

    def _plan(self) -> tuple[int, Sequence[Any]]:
        epoch = self.epoch if self.shuffle else 0
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self.batches(np.random.default_rng([self.seed, epoch]))
        return self._planned


class BatchLoader(DataLoader[Any]):
    """A loader without state, because `BatchSampler.start` holds the position; Lightning requires these methods."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing."""


class _InOrder(SequentialSampler, DistributedSampler[Any]):
    """Yields this process's batches of another sampler's first epoch in every epoch, for `overfit_batches`.

    (Lightning replaces samplers that are not instances of these two classes.)
    """

    def __init__(self, batches: Sequence[Any], first: BatchSampler) -> None:
        SequentialSampler.__init__(self, batches)
        self.start, self.first = 0, first  # for a resumed run, like the methods

    @override
    def __iter__(self) -> Iterator[int]:
        start, self.start = self.start, 0
        return iter(range(start, len(self)))

    def seen(self, count: int) -> tuple[int, int]:
        """Return what `BatchSampler.seen` does."""
        return self.first.seen(count)

    @property
    def content(self) -> int | None:
        """The checksum of the examples."""
        return self.first.content


def sampler_loader(examples: Any, sampler: BatchSampler, *, trainer: Trainer | None, num_workers: int) -> DataLoader[Any]:
    """Return a loader of the batches of `examples` that `sampler` yields."""
    dataset: Dataset[Any] = examples
    order: Any = sampler
    if getattr(trainer, "overfit_batches", 0) > 0:  # the same examples in every epoch, augmented once
        dataset = [examples[share] for share in sampler]  # type: ignore[assignment]  # a list will do
        order = _InOrder(dataset, sampler)  # type: ignore[arg-type]
    return BatchLoader(
        dataset,
        sampler=order,
        batch_size=None,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # seeds the workers; without it, each epoch would advance the global state and change dropout
    )
