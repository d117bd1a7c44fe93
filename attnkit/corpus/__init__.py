"""Corpora: the rows of a source, in splits, independent of how they are framed. Names: `attnkit.corpora.names()`."""

from attnkit.corpus.base import (
    AnswerCorpus,
    Corpus,
    ImageCorpus,
    LabelCorpus,
    PairCorpus,
    QuestionCorpus,
    SignalCorpus,
    TagCorpus,
    TextCorpus,
)
from attnkit.corpus.image_reading import Images

__all__ = [
    "AnswerCorpus", "Corpus", "ImageCorpus", "Images", "LabelCorpus", "PairCorpus", "QuestionCorpus", "SignalCorpus", "TagCorpus",
    "TextCorpus",
]  # fmt: skip
