"""Write the King James Bible for the corpus `kjv`: a chapter in each row, with one verse per line.

The script also writes the verses with the package's markup: `kjv/words` has a tag for each word, and `kjv/questions` says which words
translate a word of the Hebrew or Greek text.

The source is Debian's package `sword-text-kjv`, a zText module of SWORD. It is downloaded unless it is already unpacked or installed.
"""

import html
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

from fetching import main, package_file, write_rows

from attnkit.files import UNPACKED, read_bytes, too_large
from attnkit.registry import ConfigurationError

PACKAGE = "sword-text-kjv"
MODULE = "usr/share/sword/modules/texts/ztext/engKJV2006eb"

_CHAPTER = re.compile(r"<chapter [^>]*\bsID=")
_TITLE = re.compile(r"<(note|title)\b.*?</\1>|[¶\\]", re.DOTALL)  # like _UNREAD, without the other tags
_TAG = re.compile(r"<(/?)(w|transChange)\b([^>]*)>|<[^>]*>")
_NUMBER = re.compile(r'lemma="strong:([HG]\d+)"')
_COMMON = 100
"""Minimum number of training verses that mark a Hebrew or Greek word's translation for questions to ask about it."""

_UNREAD = re.compile(r"<(note|title)\b.*?</\1>|<[^>]*>|[¶\\]", re.DOTALL)  # notes and titles with their text, other tags, typographic marks


def convert(folder: Path) -> None:
    """Write the rows. Of every 20 chapters, the tenth is validation and the last is test."""
    parts: dict[str, list[list[str]]] = {"train": [], "validation": [], "test": []}
    for number, entries in enumerate(_chapters(folder), start=1):
        parts[{10: "validation", 0: "test"}.get(number % 20, "train")].append(entries)
    for part, found in parts.items():
        write_rows(folder / "kjv" / f"{part}.jsonl", ({"text": _text(entries)} for entries in found))
    marked = {part: [Marked.of(entry) for entries in found for entry in entries] for part, found in parts.items()}
    counts = Counter(number for verse in marked["train"] for number in verse.spans)
    for part, verses in marked.items():
        write_rows(folder / "kjv" / "words" / f"{part}.jsonl", (verse.tagged for verse in verses))
        common = ((verse, [n for n in verse.spans if counts[n] >= _COMMON]) for verse in verses)
        rows = (verse.question(numbers[i % len(numbers)]) for i, (verse, numbers) in enumerate(common) if numbers)
        write_rows(folder / "kjv" / "questions" / f"{part}.jsonl", rows)


class Marked(NamedTuple):
    """A verse with the package's markup.

    Attributes:
        words: Its words.
        tags: One per word: `translated` if it belongs to the translation of a Hebrew or Greek word, `added` if the translators added it
            (printed editions set it in italics), otherwise `other`.
        spans: The first and last word of the translation of each Hebrew or Greek word that occurs once in the verse, by the word's number
            in Strong's dictionary.
    """

    words: list[str]
    tags: list[str]
    spans: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, entry: str) -> Self:
        """Read the markup of a verse.

        Example:
            >>> Marked.of('The <w lemma="strong:H1">father</w> <transChange type="added">is</transChange> lost.')
            Marked(words=['The', 'father', 'is', 'lost.'], tags=['other', 'translated', 'added', 'other'], spans={'H1': (1, 1)})
        """
        text = ""
        kinds: list[str] = []  # one per character
        numbers: list[tuple[str, int, int]] = []
        kind, start, open_number, place = "other", 0, "", 0
        cleaned = _TITLE.sub("", entry)
        for tag in [*_TAG.finditer(cleaned), None]:
            piece = html.unescape(cleaned[place : tag.start() if tag else None])
            text, kinds = text + piece, kinds + [kind] * len(piece)
            if tag is None:
                break
            place = tag.end()
            if tag[2] == "transChange":
                kind = "other" if tag[1] else "added"
            elif tag[2] == "w" and not tag[1] and (found := _NUMBER.search(tag[3])):
                kind, start, open_number = "translated", len(text), found[1]
            elif tag[2] == "w" and open_number:
                numbers.append((open_number, start, len(text)))
                kind, open_number = "other", ""
        places = [match.span() for match in re.finditer(r"\S+", text)]
        tags = [next((k for k in ("translated", "added") if k in kinds[a:b]), "other") for a, b in places]
        counts = Counter(number for number, _, _ in numbers)
        spans = {}
        for number, first, last in numbers:
            touched = [i for i, (a, b) in enumerate(places) if a < last and b > first]
            if touched and counts[number] == 1:
                spans[number] = (touched[0], touched[-1])
        return cls([text[a:b] for a, b in places], tags, spans)

    @property
    def tagged(self) -> dict[str, str]:
        """The row with words and tags."""
        return {"words": " ".join(self.words), "tags": " ".join(self.tags)}

    def question(self, number: str) -> dict[str, str | int]:
        """Return the row that asks for the translation of a Hebrew or Greek word."""
        first, last = self.spans[number]
        before = "".join(f"{word} " for word in self.words[:first])
        return {"question": number, "passage": " ".join(self.words), "answer": " ".join(self.words[first : last + 1]), "start": len(before)}


def chapters(folder: Path) -> list[str]:
    """Return all chapters in order, each with one verse per line."""
    return [_text(entries) for entries in _chapters(folder)]


def _text(entries: list[str]) -> str:
    return "".join(f"{_plain(entry)}\n" for entry in entries)


def _plain(entry: str) -> str:
    return " ".join(html.unescape(_UNREAD.sub("", entry)).split())


def _chapters(folder: Path) -> list[list[str]]:
    """Return the entries of the verses of each chapter, in order."""
    verses: list[list[str]] = []
    for entry in chain(_entries("ot", folder), _entries("nt", folder)):
        if _CHAPTER.search(entry):
            verses.append([])
        verse = _plain(entry)
        if verse and not verses:
            raise ConfigurationError(f"the files of {PACKAGE} are damaged: a verse precedes the first chapter")
        if verse:
            verses[-1].append(entry)
    return verses


def _entries(testament: str, folder: Path) -> Iterator[str]:
    """Yield the entries of a zText module: titles of books and chapters, and verses.

    `bzs` gives the location of each compressed block: offset, size, uncompressed size. `bzv` gives the location of each entry: block,
    offset in the uncompressed block, size.
    """
    paths = [package_file(PACKAGE, f"{MODULE}/{testament}.{suffix}", folder) for suffix in ("bzs", "bzv", "bzz")]
    blocks, entries, packed = (read_bytes(path, limit=UNPACKED) for path in paths)
    try:
        unpacked: list[bytes] = []
        left = UNPACKED
        for start, size, _ in struct.iter_unpack("<III", blocks):
            block = zlib.decompressobj()
            unpacked.append(block.decompress(packed[start : start + size], left + 1))
            left -= len(unpacked[-1])
            if left < 0:
                raise too_large(paths[2])
            if not block.eof:
                raise zlib.error(f"block {len(unpacked)} is truncated")
        for number, start, size in struct.iter_unpack("<IIH", entries):
            if size:
                yield unpacked[number][start : start + size].decode()
    except (zlib.error, struct.error, IndexError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{paths[0].with_suffix('')} is damaged ({error}): unpack the package {PACKAGE} again") from error


if __name__ == "__main__":
    main(convert)
