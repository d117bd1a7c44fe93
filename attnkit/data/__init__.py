"""Data modules: how the rows of a corpus become training examples. Names: `attnkit.datasets.names()`."""

from attnkit.data.base import Framing
from attnkit.data.batching import Examples, Seq2SeqBatch, Sequences, TokenBatchSampler

__all__ = ["Examples", "Framing", "Seq2SeqBatch", "Sequences", "TokenBatchSampler"]
