"""Data modules: how the rows of a corpus become training examples. Names: `attnkit.datasets.names()`."""

from typing import Any

from attnkit.data.base import Framing
from attnkit.data.batching import Examples, Seq2SeqBatch, Sequences, TokenBatchSampler
from attnkit.registry import datasets

__all__ = ["Examples", "Framing", "Seq2SeqBatch", "Sequences", "TokenBatchSampler"]


def __getattr__(name: str) -> Any:  # TextPairs and the other data modules are imported lazily
    return datasets.by_class_name(name)
