"""Inspects a file of texts before a recipe is written for it."""

import statistics
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from attnkit.corpus.files import Files
from attnkit.registry import ConfigurationError
from attnkit.wording import counted

SHOWN = 5


@dataclass
class Side:
    """One column of a table, or a running text."""

    name: str  # the kind of its texts
    lengths: list[int] = field(default_factory=list)  # characters of each row (for running text, of each document)
    longest_bytes: int = 0  # UTF-8 bytes of the longest row
    words: int = 0
    characters: Counter[str] = field(default_factory=Counter)  # the count of each

    def add(self, text: Iterable[str]) -> None:
        """Count a text, given in chunks, as tokenizers read it: in Unicode's composed form, NFC."""
        length = size = 0
        for chunk in (unicodedata.normalize("NFC", chunk) for chunk in text):
            length, size = length + len(chunk), size + len(chunk.encode("utf-8", "replace"))
            self.words += len(chunk.split())
            self.characters.update(chunk)
        self.lengths.append(length)
        self.longest_bytes = max(self.longest_bytes, size)

    @property
    def total(self) -> int:
        """The number of characters."""
        return sum(self.lengths)

    def quantile(self, fraction: float) -> int:
        """Return the length that this fraction of the rows does not exceed."""
        return sorted(self.lengths)[min(len(self.lengths) - 1, int(fraction * len(self.lengths)))]

    @property
    def line(self) -> str:
        """A line that describes it."""
        counts = self.characters.items()
        unusual = {
            "that occur once": [c for c, n in counts if n == 1 and not c.isascii()],
            "that cannot be seen": [c for c in self.characters if not c.isprintable() and c != "\n"],
        }
        notes = [f"; {len(found):,} {what}, such as {', '.join(map(named, found[:SHOWN]))}" for what, found in unusual.items() if found]
        return (
            f"{self.name}: {self.total:,} characters ({len(self.characters):,} distinct) in {self.words:,} words; "
            f"median length {statistics.median(self.lengths):,.0f} characters, 95 % of the rows have at most {self.quantile(0.95):,}, "
            f"the longest has {max(self.lengths):,}{''.join(notes)}"
        )


@dataclass(frozen=True)
class Found:
    """The content of a file."""

    rows: int  # the number of usable rows, or of documents
    distinct: int  # the number of distinct rows; for running text, of documents
    sides: Sequence[Side]  # its columns of text
    notes: Sequence[str]  # lines about rows that need attention
    bad_rows: int = 0  # the number of rows that cannot be read
    classes: Sequence[str] = ()  # the most frequent first


def inspect_table(corpus: Files, *, labelled: bool) -> Found:
    """Read the training rows of a table of pairs or of labelled texts; raise a `ConfigurationError` if it has no usable row."""
    rows = corpus.labelled("train") if labelled else corpus.pairs("train")
    sides = [Side("texts")] if labelled else [Side("sources"), Side("targets")]
    for row in rows:
        for side, text in zip(sides, row, strict=False):
            side.add([text])
    notes = []
    if bad := corpus.bad_rows["train"]:
        notes.append(f"{counted(len(bad), 'unreadable row')} skipped; the first: {bad.first}")
    if empty := sum(not all(text.strip() for text in row) for row in rows):
        notes.append(f"{counted(empty, 'row')} with an empty cell, which teaches the model to write nothing: remove such rows")
    if duplicates := len(rows) - len(set(rows)):
        notes.append(f"{duplicates:,} rows repeat an earlier one")
    if conflicts := len({*rows}) - len({source for source, _ in rows}):
        notes.append(f"{conflicts:,} rows share their source with a row that has another {'label' if labelled else 'target'}")
    classes = Counter(label for _, label in rows).most_common() if labelled else []
    if classes:
        shown = ", ".join(f"{label!r} {count / len(rows):.0%}" for label, count in classes[:SHOWN])
        notes.append(f"{len(classes):,} classes: {shown}{', ...' if len(classes) > SHOWN else ''}")
    return Found(len(rows), len(set(rows)), sides, notes, len(bad), [label for label, _ in classes])


def inspect_text(corpus: Files) -> Found:
    """Read a running text; raise a `ConfigurationError` if it cannot be read, or has only white space."""
    side = Side("text")
    for document in corpus.documents("train"):
        side.add(document)
    if not any(not c.isspace() for c in side.characters):
        raise ConfigurationError("the text is empty or only white space")
    return Found(len(side.lengths), len(side.lengths), [side], [])


def named(character: str) -> str:
    """Return a character with its code point.

    Example:
        >>> named("é"), named(chr(0))
        ("'é' (U+00E9)", 'U+0000')
    """
    code = f"U+{ord(character):04X}"
    return code if unicodedata.category(character)[0] in "CZ" else f"{character!r} ({code})"
