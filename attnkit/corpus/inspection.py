"""Inspects a file of texts, before a recipe for it is written."""

import math
import statistics
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from attnkit.corpus.base import Part, number_of
from attnkit.corpus.files import Files
from attnkit.registry import ConfigurationError
from attnkit.wording import counted

SHOWN = 5


@dataclass
class Side:
    """One column of a table, or a running text."""

    name: str  # the kind of its texts
    unit: str = "row"
    lengths: list[int] = field(default_factory=list)  # characters of each row (for running text, of each document)
    longest_bytes: int = 0  # UTF-8 bytes of the longest row
    words: int = 0
    characters: Counter[str] = field(default_factory=Counter)  # occurrences of each character

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
        """Return the length that a fraction of the rows does not exceed."""
        return sorted(self.lengths)[min(len(self.lengths) - 1, int(fraction * len(self.lengths)))]

    @property
    def line(self) -> str:
        """A one-line description."""
        counts = self.characters.items()
        unusual = {
            "that occur once": [c for c, n in counts if n == 1 and not c.isascii()],
            "that cannot be seen": [c for c in self.characters if not c.isprintable() and c != "\n"],
        }
        notes = [f"; {len(found):,} {what}, such as {', '.join(map(named, found[:SHOWN]))}" for what, found in unusual.items() if found]
        lengths = (
            f"; median length {statistics.median(self.lengths):,.0f} characters, 95 % of the {self.unit}s have at most "
            f"{self.quantile(0.95):,}, the longest has {max(self.lengths):,}"
        )
        return (
            f"{self.name}: {self.total:,} characters ({len(self.characters):,} distinct) in {self.words:,} words"
            f"{lengths if len(self.lengths) > 1 else ''}{''.join(notes)}"
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


def inspect_table(corpus: Files, *, labelled: bool, numbers: bool = False) -> Found:
    """Inspect the training rows, and any validation rows, of a table of pairs or of labelled texts."""
    rows = _rows(corpus, "train", labelled)
    sides = [Side("texts")] if labelled else [Side("sources"), Side("targets")]
    for row in rows:
        for side, text in zip(sides, row, strict=False):
            side.add([text])
    notes = []
    if bad := corpus.bad_rows["train"]:
        notes.append(f"{counted(len(bad), 'unreadable row')} skipped; the first: {bad.first}")
    if empty := sum(not all(text.strip() for text in row) for row in rows):
        effect = "" if labelled else ", which teaches the model to output nothing"
        notes.append(f"{counted(empty, 'row')} with an empty cell{effect}: remove such rows")
    if duplicates := len(rows) - len(set(rows)):
        notes.append(f"{counted(duplicates, 'row')} repeat{'s' * (duplicates == 1)} an earlier one")
    if conflicts := len({*rows}) - len({source for source, _ in rows}):
        what = "text with a row that has another label" if labelled else "source with a row that has another target"
        notes.append(f"{counted(conflicts, 'row')} {'shares its' if conflicts == 1 else 'share their'} {what}")
    if corpus.has("validation"):
        held_out, known = _rows(corpus, "validation", labelled), {unicodedata.normalize("NFC", text) for text, _ in rows}
        if shared := sum(unicodedata.normalize("NFC", text) in known for text, _ in held_out):
            kind = "text" if labelled else "source"
            occur = "occurs" if shared == 1 else "occur"
            notes.append(f"{shared:,} of {counted(len(held_out), f'validation {kind}')} also {occur} in the training data")
    classes = Counter(label for _, label in rows).most_common() if labelled else []
    if numbers:
        notes.append(_numbers_line([label for label, _ in classes]))
    elif classes:
        shown = ", ".join(f"{label!r} {count / len(rows):.0%}" for label, count in classes[:SHOWN])
        notes.append(f"{len(classes):,} classes: {shown}{', ...' if len(classes) > SHOWN else ''}")
        notes += _alike([label for label, _ in classes])
    return Found(len(rows), len(set(rows)), sides, notes, len(bad), [label for label, _ in classes])


def _rows(corpus: Files, part: Part, labelled: bool) -> Sequence[tuple[str, str]]:
    return corpus.labelled(part) if labelled else corpus.pairs(part)


def _numbers_line(labels: Sequence[str]) -> str:
    if (wrong := next((label for label in labels if not is_number(label)), None)) is not None:
        raise ConfigurationError(f"the label {wrong!r} is not a finite number; for classes: attnkit new classification")
    values = list(map(number_of, labels))
    return f"numbers from {min(values):g} to {max(values):g}, {counted(len(values), 'different one')}"


def _alike(labels: Sequence[str]) -> list[str]:
    """Return a line about labels that differ only in case, spaces or Unicode form, if there are any."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(" ".join(unicodedata.normalize("NFKC", label).casefold().split()), []).append(label)
    alike = [" and ".join(map(_distinct, group)) for group in groups.values() if len(group) > 1]
    shown = ", ".join(alike[:SHOWN]) + (", ..." if len(alike) > SHOWN else "")
    return [f"labels that differ only in case, spaces or Unicode form are different classes: {shown}"] if alike else []


def _distinct(label: str) -> str:
    """Return a label so that it differs from those that look the same."""
    return repr(label) if unicodedata.normalize("NFKC", label) == label else ascii(label)


def is_number(label: str) -> bool:
    """Return whether a label is a finite number.

    Example:
        >>> is_number("-1.5e3"), is_number("nan"), is_number("one")
        (True, False, False)
    """
    return math.isfinite(number_of(label))


def inspect_text(corpus: Files) -> Found:
    """Inspect a running text; raise a `ConfigurationError` if it cannot be read or has only white space."""
    side = Side("text", "document")
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
