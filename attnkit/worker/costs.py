"""The costs of a run of a study: tokens, FLOPs, time."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnkit.files import cache_folder
from attnkit.profile.elementwise import elementwise_operations
from attnkit.profile.flops import BACKWARD, Exponents, batch_flops, forward_flops, present_rows, row_lengths
from attnkit.strategy import data_share
from attnkit.task import Task
from attnkit.task.word_vectors import WordVectors
from attnkit.worker.folder import key_of, stored, write_json
from attnkit.worker.provenance import Provenance

NOT_COUNTED = ("optimizer", "schedule")  # arguments of a task that do not affect its model


def tokens_read(module: LightningModule, batch: Any) -> int:
    """Return the number of non-padding tokens of a batch that the model reads, counted as in the callback `Throughput`.

    An image counts as one token. For a module that is not an attnkit task, all nonzero integers (int64) of the batch are counted.
    """
    if isinstance(module, Task):
        s, t = row_lengths(module, batch)
        return int((present_rows(batch, s) * (s + t)).sum())
    if isinstance(batch, Mapping):
        batch = {name: value for name, value in batch.items() if name != "example"}
    integers = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dtype == torch.int64)
    return sum(int(leaf.to_dense().count_nonzero()) for leaf in integers)


def of_all_processes(trainer: Trainer, number: int) -> int:
    """Return the sum of a number that each process counted in its share of the data; processes with the same share count once."""
    if trainer.world_size == 1:
        return number
    summed = trainer.strategy.reduce(torch.tensor(number, device=trainer.strategy.root_device), reduce_op="sum")
    return int(summed) * data_share(trainer).num_replicas // trainer.world_size


def training_flops_per_token(task: LightningModule, batch: Any) -> int | None:
    """Return the training FLOPs, forward and backward, per non-padding token of a batch; None without a batch or tokens."""
    if batch is None or not isinstance(task, Task) or not (tokens := tokens_read(task, batch)):
        return None
    return _training_flops(forward_flops(task), task, batch, tokens)


def _training_flops(formula: Mapping[Exponents, int], task: Task, batch: Any, tokens: int) -> int:
    return round((1 + BACKWARD) * batch_flops(formula, task, batch) / tokens)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The counts of a task: the terms of its FLOPs (`forward_flops`) and the element-wise operations of one row."""

    flops: tuple[tuple[int, int, int], ...]  # the exponents of S and T, and the coefficient
    elementwise: int | None


def count(task: Task, s: int, t: int) -> Counts:
    """Return the counts of a task for a row of `s` input tokens and `t` target tokens; word vectors have no rows."""
    terms = tuple((*exponents, coefficient) for exponents, coefficient in forward_flops(task).items())
    return Counts(flops=terms, elementwise=None if isinstance(task, WordVectors) else elementwise_operations(task, s, t))


def kept_count(task: Task, s: int, t: int, *, made: Callable[[], Provenance]) -> Counts:
    """Return `count`, cached for equal arguments and the same code, data, packages and processor.

    Counting takes longer than a short training run and is the same for every seed. The result is not cached if code was imported or data
    were read meanwhile, because it may depend on them; `made` returns the provenance of this process.
    """
    before = made()
    arguments = {name: value for name, value in task.hparams.items() if name not in NOT_COUNTED}
    shapes = {name: list(tensor.shape) for name, tensor in (*task.named_parameters(), *task.named_buffers())}
    file = cache_folder() / "counts" / f"{key_of([arguments, shapes, s, t, asdict(before)])}.json"
    if (kept := stored(Counts, file)) is not None:
        return kept
    counts = count(task, s, t)
    if made() == before:
        with suppress(OSError):  # the cache cannot be written to
            write_json(file, asdict(counts))
    return counts


def operations_per_token(task: Task, batch: Any, *, made: Callable[[], Provenance]) -> dict[str, int | None]:
    """Return the operations per non-padding token of a batch, by their names in a `Result`; None without a batch or tokens.

    FLOPs are those of `training_flops_per_token`; element-wise operations are those of a forward pass of a row of average lengths. For
    `made`, see `kept_count`.
    """
    flops = elementwise = None
    if batch is not None and (tokens := tokens_read(task, batch)):
        lengths = row_lengths(task, batch)
        present = present_rows(batch, lengths[0])
        s, t = (round(float((present * length).sum() / present.sum())) for length in lengths)
        found = kept_count(task, s, t, made=made)
        flops = _training_flops({(a, b): coefficient for a, b, coefficient in found.flops}, task, batch, tokens)
        elementwise = round(found.elementwise / (s + t)) if found.elementwise is not None and s + t else None
    return {"flops_per_token": flops, "elementwise_per_token": elementwise}


def uses_processor_time() -> bool:
    """Return whether training is timed in CPU time; with a single CPU thread, other load on the machine then matters little."""
    return not torch.accelerator.is_available() and torch.get_num_threads() == 1


def now() -> float:
    """Return the current time in seconds on the clock that training is timed with."""
    return time.process_time() if uses_processor_time() else time.perf_counter()
