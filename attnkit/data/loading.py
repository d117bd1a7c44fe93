"""Loaders whose order is a pure function of seed and epoch, so that a resumed run needs only the position to go on."""

from abc import abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from typing_extensions import override


class BatchSampler(DistributedSampler[Any]):
    """Yields one index of a whole batch after another, in every epoch from the first one, but in the first pass from `start` on.

    Lightning leaves a `DistributedSampler` alone and tells it the epoch.

    Attributes:
        start: Batches that the next pass leaves out: a resumed run has trained on them, and `Task` says so.

    Example:
        >>> class Pairs(BatchSampler):
        ...     def batches(self):
        ...         yield from ([0, 1], [2, 3], [4, 5])
        >>> sampler = Pairs(range(6), num_replicas=1, rank=0)
        >>> sampler.start = 2
        >>> list(sampler), list(sampler)
        ([[4, 5]], [[0, 1], [2, 3], [4, 5]])
    """

    start: int = 0

    @abstractmethod
    def batches(self) -> Iterator[Any]:
        """Yield the batches of this process in the current epoch."""

    @override
    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, 0
        return islice(self.batches(), start, None)  # the next pass is this one, even if nobody takes a batch of it


class BatchLoader(DataLoader[Any]):
    """A loader without a state of its own, for `BatchSampler.start` says where it stands; Lightning asks for these methods."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing."""


def repeats_batches(trainer: Trainer | None) -> bool:
    """Return whether the trainer overfits a few batches: Lightning then puts a sampler of its own in the place of ours."""
    return getattr(trainer, "overfit_batches", 0) > 0


def process_share(trainer: Trainer | None) -> dict[str, Any]:
    """Return `num_replicas` and `rank` for a sampler.

    The trainer knows better than torch.distributed which processes share a batch: those of tensor parallelism do.
    """
    if repeats_batches(trainer):
        return {"num_replicas": 1, "rank": 0}
    return (trainer and trainer.distributed_sampler_kwargs) or {}


def sampler_loader(examples: Any, sampler: BatchSampler, *, trainer: Trainer | None, num_workers: int) -> DataLoader[Any]:
    """Return the loader of the batches of `examples` that `sampler` chooses."""
    overfit = repeats_batches(trainer)
    dataset: Dataset[Any] = [examples[batch] for batch in sampler] if overfit else examples  # type: ignore[assignment]  # a list will do
    return BatchLoader(
        dataset,
        sampler=None if overfit else sampler,
        batch_size=None,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # of the seeds of workers; without it an epoch would move torch's global state, and dropout with it
    )
