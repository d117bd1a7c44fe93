"""Data modules: how the rows of a corpus become training examples. Names: `attnkit.datasets.names()`."""

from typing import TYPE_CHECKING, Any

from attnkit.data.base import Framing
from attnkit.data.batching import Examples, Seq2SeqBatch, Sequences, TokenBatchSampler
from attnkit.registry import datasets

__all__ = ["Examples", "Framing", "Seq2SeqBatch", "Sequences", "TokenBatchSampler"]

if TYPE_CHECKING:
    from attnkit.data.labelled_images import LabelledImages as LabelledImages
    from attnkit.data.labelled_text import LabelledText as LabelledText
    from attnkit.data.prompted_text import PromptedText as PromptedText
    from attnkit.data.questions import Questions as Questions
    from attnkit.data.signal_text import SignalText as SignalText
    from attnkit.data.span_corruption import SpanCorruption as SpanCorruption
    from attnkit.data.tagged_text import TaggedText as TaggedText
    from attnkit.data.text import Text as Text
    from attnkit.data.text_pairs import TextPairs as TextPairs
else:

    def __getattr__(name: str) -> Any:  # imported on first use
        return datasets.by_class_name(name)
