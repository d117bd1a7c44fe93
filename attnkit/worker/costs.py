"""The costs of a run of a study: tokens, FLOPs, time."""

import time
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnkit.profile.elementwise import elementwise_operations
from attnkit.profile.flops import BACKWARD, batch_flops, forward_flops, present_rows, row_lengths
from attnkit.task import Task
from attnkit.task.word_vectors import WordVectors


def tokens_read(module: LightningModule, batch: Any) -> int:
    """Return the number of non-padding tokens of a batch that the model reads, as the callback `Throughput` counts them.

    An image counts as a token. For a module that is not a task of attnkit, all integers of the batch other than 0 are counted.
    """
    if isinstance(module, Task):
        s, t = row_lengths(module, batch)
        return int((present_rows(batch, s) * (s + t)).sum())
    if isinstance(batch, Mapping):
        batch = {name: value for name, value in batch.items() if name != "example"}
    integers = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dtype == torch.int64)
    return sum(int(dense(leaf).count_nonzero()) for leaf in integers)


def dense(tensor: Tensor) -> Tensor:
    """Return a tensor, which may be sparse, with all its zeros."""
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def training_flops_per_token(task: LightningModule, batch: Any) -> int | None:
    """Return the FLOPs of training, forward and backward, for each non-padding token of a batch; None without a batch or tokens."""
    if batch is None or not isinstance(task, Task) or not (tokens := tokens_read(task, batch)):
        return None
    return round((1 + BACKWARD) * batch_flops(forward_flops(task), task, batch) / tokens)


def elementwise_per_token(task: LightningModule, batch: Any) -> int | None:
    """Return the element-wise operations of a forward pass for each token, in a row of the average lengths of a batch.

    None as in `training_flops_per_token`, and for word vectors, which have no rows.
    """
    if batch is None or not isinstance(task, Task) or isinstance(task, WordVectors) or not tokens_read(task, batch):
        return None
    lengths = row_lengths(task, batch)
    present = present_rows(batch, lengths[0])
    s, t = (round(float((present * length).sum() / present.sum())) for length in lengths)
    return round(elementwise_operations(task, s, t) / (s + t)) if s + t else None


def uses_processor_time() -> bool:
    """Return whether training is timed in CPU time: with one CPU thread, other load on the machine then matters little."""
    return not torch.accelerator.is_available() and torch.get_num_threads() == 1


def now() -> float:
    """Return the time in seconds on the clock used for trainings."""
    return time.process_time() if uses_processor_time() else time.perf_counter()
