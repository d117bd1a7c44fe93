"""Which processes share the data."""

from typing import NamedTuple

from lightning.pytorch import Trainer


class DataShare(NamedTuple):
    """The number of different shares of the data, and this process's share; a tensor-parallel group has one share."""

    num_replicas: int
    rank: int


def data_share(trainer: Trainer) -> DataShare:
    """Return this process's share of the data, from the trainer, which knows about tensor parallelism.

    Example:
        >>> data_share(Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False))
        DataShare(num_replicas=1, rank=0)
    """
    share = trainer.distributed_sampler_kwargs or {}
    return DataShare(int(share.get("num_replicas", 1)), int(share.get("rank", 0)))
