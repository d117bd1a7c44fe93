"""The base classes of corpora: rows of one kind, in splits."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal, NamedTuple, get_args

from attnkit.corpus.image_reading import Images
from attnkit.corpus.signals import Signals
from attnkit.corpus.tables import BadRows, Column, OnBadRows

Part = Literal["train", "validation", "test"]
Pair = tuple[str, str]  # source, target
Labelled = tuple[str, str]  # a text and its label as a string: a class or a number
Labels = Literal["class", "number"]


def number_of(label: str) -> float:
    """Convert a label to a number; NaN if it is not one.

    Example:
        >>> number_of("-1.5e3"), number_of("one")
        (-1500.0, nan)
    """
    try:
        return float(label)
    except ValueError:
        return math.nan


Tagged = tuple[Sequence[str], Sequence[str]]  # words, and the tag of each


class Question(NamedTuple):
    """A question whose answer is a span of a passage, beginning at character `start`, counted from 0."""

    question: str
    passage: str
    answer: str
    start: int


def references(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """Return the distinct targets of each distinct source, both in order of appearance.

    Example:
        >>> references([("tear", "T IH R"), ("a", "AH"), ("tear", "T EH R"), ("a", "AH")])
        {'tear': ['T IH R', 'T EH R'], 'a': ['AH']}
    """
    targets: dict[str, dict[str, None]] = {}
    for source, target in pairs:
        targets.setdefault(source, {})[target] = None
    return {source: list(distinct) for source, distinct in targets.items()}


class Corpus(ABC):
    """The rows of a source, in splits. Subclasses define kinds of rows; a framing takes any corpus of its kind.

    Attributes:
        rows: The kind of rows, in words.
        on_bad_rows: How to handle unusable rows: `error` or `skip`; None is always an error.
        bad_rows: The unusable rows of each split; `predict` is for the framing's prediction file.
        origins: Where the rows of each split were read from, if the spec leaves that open.
        parts: The corpora that it consists of.
        aside: A hash that identifies the rows set aside from the training rows, once they are; None if none are.
    """

    rows: ClassVar[str]
    on_bad_rows: OnBadRows | None = None
    parts: "Sequence[Corpus]" = ()
    aside: str | None = None

    def __init__(self) -> None:
        self.bad_rows = {part: BadRows(self.on_bad_rows) for part in (*get_args(Part), "predict")}
        self.origins: dict[str, str] = {}

    def has(self, part: Part) -> bool:
        """Return whether the corpus has a split."""
        return True

    def check(self, part: Part) -> None:  # noqa: B027
        """Raise a `ConfigurationError` if the source of a split is missing, as far as this can be seen without reading it."""

    def is_cut(self, part: Part) -> bool:
        """Return whether a split is cut from the training rows."""
        return False

    def with_parts(self) -> "Iterator[Corpus]":
        """Yield this corpus and all corpora that it consists of."""
        yield self
        for part in self.parts:
            yield from part.with_parts()

    def columns_for(self, *names: str) -> Sequence[Column]:
        """Return the file columns that hold the fields `names`."""
        return names


class TextCorpus(Corpus):
    """Running text."""

    rows = "running text"

    @abstractmethod
    def documents(self, part: Part) -> Iterator[Iterable[str]]:
        """Yield the documents of a split, the same on each call, each as chunks of any size, to be read before the next document."""


class LabelCorpus(TextCorpus):
    """Labelled texts. Without the labels, they are running text in which each text is a document."""

    rows = "labelled texts"

    @abstractmethod
    def labelled(self, part: Part) -> Sequence[Labelled]:
        """Return the texts of a split and their labels."""

    def documents(self, part: Part) -> Iterator[Iterable[str]]:
        """Yield each text of a split."""
        return ([text] for text, _ in self.labelled(part))


class AnswerCorpus(Corpus):
    """Prompts and answers, alternating in each row, which begins with a prompt and ends with an answer."""

    rows = "prompts and answers"

    @abstractmethod
    def turns(self, part: Part) -> Sequence[Sequence[str]]:
        """Return the rows of a split: prompt, answer, prompt, answer, ..."""


class PairCorpus(AnswerCorpus):
    """Pairs of a source text and a target text, which are also prompts with one answer each."""

    rows = "pairs of texts"

    @abstractmethod
    def pairs(self, part: Part) -> Sequence[Pair]:
        """Return the pairs of a split."""

    def turns(self, part: Part) -> Sequence[Sequence[str]]:
        """Return the pairs of a split."""
        return self.pairs(part)

    def references(self, part: Part) -> dict[str, list[str]]:
        """Return all correct targets of each source of a split, the canonical one first."""
        return references(self.pairs(part))


class ImageCorpus(Corpus):
    """Images, each with a class.

    Attributes:
        classes: The names of the classes in the order of their ids, if they have names.
    """

    rows = "labelled images"
    classes: ClassVar[Sequence[str] | None] = None

    @abstractmethod
    def images(self, part: Part, *, shape: Sequence[int] | None) -> Images:
        """Return the images of a split; files are converted to `shape`, channels, height and width (default: those of the first one)."""


class SignalCorpus(Corpus):
    """Images or sounds, each with a text."""

    rows = "images or sounds with texts"

    @abstractmethod
    def signals(self, part: Part, *, shape: Sequence[int] | None) -> Signals:
        """Return the images or sounds of a split, with their texts; image files are converted to `shape` as by `ImageCorpus.images`."""


class TagCorpus(Corpus):
    """Sentences with a tag for each word."""

    rows = "tagged words"

    @abstractmethod
    def tagged(self, part: Part) -> Sequence[Tagged]:
        """Return the sentences of a split."""


class QuestionCorpus(Corpus):
    """Questions about passages; an answer is a span of its passage."""

    rows = "questions about passages"

    @abstractmethod
    def questions(self, part: Part) -> Sequence[Question]:
        """Return the questions of a split."""
