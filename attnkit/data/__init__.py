"""Data modules. Names: `attnkit.datasets.names()`."""

from attnkit.data.base import Seq2SeqData
from attnkit.data.batching import Examples, Seq2SeqBatch, Sequences, TokenBatchSampler

__all__ = ["Examples", "Seq2SeqBatch", "Seq2SeqData", "Sequences", "TokenBatchSampler"]
