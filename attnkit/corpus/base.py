"""What every corpus promises: rows of one kind, in parts."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal, get_args

from attnkit.corpus.bad_rows import BadRows, OnBadRows
from attnkit.corpus.images import Images
from attnkit.corpus.tables import Column

Part = Literal["train", "validation", "test"]
Pair = tuple[str, str]  # source, target
Labelled = tuple[str, str]  # a text, and its label as it is written: a class, or a number
Labels = Literal["class", "number"]


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
    """The rows of a source, in parts. Subclasses say of which kind they are: a framing takes any corpus of its kind.

    Attributes:
        rows: What its rows are, in words.
        on_bad_rows: Whether rows that cannot be used are an error or skipped; None is an error without a choice.
        bad_rows: The rows that cannot be used, by part; `predict` is that of a framing's file.
    """

    rows: ClassVar[str]
    on_bad_rows: OnBadRows | None = None

    def __init__(self) -> None:
        self.bad_rows = {part: BadRows(self.on_bad_rows) for part in (*get_args(Part), "predict")}

    def has(self, part: Part) -> bool:
        """Return whether there is such a part."""
        return True

    def check(self, part: Part) -> None:  # noqa: B027
        """Raise a `ConfigurationError` if what a part is read from is missing, as far as that shows without reading it."""

    def columns_for(self, *names: str) -> Sequence[Column]:
        """Return the columns in which the rows of files have what is called `names`."""
        return names


class TextCorpus(Corpus):
    """Running text."""

    rows = "running text"

    @abstractmethod
    def documents(self, part: Part) -> Iterator[Iterable[str]]:
        """Yield the documents of a part, the same at each call. Each comes in chunks of any size, which are read before the next one."""


class LabelCorpus(TextCorpus):
    """Texts with a label each. Without their labels they are running text, each text a document."""

    rows = "labelled texts"

    @abstractmethod
    def labelled(self, part: Part) -> Sequence[Labelled]:
        """Return the texts of a part and their labels."""

    def documents(self, part: Part) -> Iterator[Iterable[str]]:
        """Yield each text of a part."""
        return ([text] for text, _ in self.labelled(part))


class PairCorpus(Corpus):
    """Pairs of a source text and a target text."""

    rows = "pairs of texts"

    @abstractmethod
    def pairs(self, part: Part) -> Sequence[Pair]:
        """Return the pairs of a part."""

    def references(self, part: Part) -> dict[str, list[str]]:
        """Return every right target of each source of a part, the canonical one first."""
        return references(self.pairs(part))


class ImageCorpus(Corpus):
    """Images with a class each.

    Attributes:
        classes: Their names in the order of their numbers, if they have names.
    """

    rows = "labelled images"
    classes: ClassVar[Sequence[str] | None] = None

    @abstractmethod
    def images(self, part: Part, *, shape: Sequence[int] | None) -> Images:
        """Return the images of a part.

        Args:
            part: Which part.
            shape: Channels, height and width that image files are brought to (default: those of the first one).
        """
