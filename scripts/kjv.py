"""Writes the King James Bible for the corpus `kjv`: a chapter in each row, with one verse per line.

The source is Debian's package `sword-text-kjv`, which is fetched if it is neither unpacked nor installed: a zText module of SWORD.
"""

import html
import re
import struct
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from fetching import main, package_file, write_rows

from attnkit.files import UNPACKED, read_bytes, too_large
from attnkit.registry import ConfigurationError

PACKAGE = "sword-text-kjv"
MODULE = "usr/share/sword/modules/texts/ztext/engKJV2006eb"

_CHAPTER = re.compile(r"<chapter [^>]*\bsID=")
_UNREAD = re.compile(r"<(note|title)\b.*?</\1>|<[^>]*>|[¶\\]", re.DOTALL)  # notes and titles with their text, other tags, typographic marks


def convert(folder: Path) -> None:
    """Write the rows. Of every 20 chapters, the tenth is for validation and the last for test."""
    parts: dict[str, list[dict[str, str]]] = {"train": [], "validation": [], "test": []}
    for number, text in enumerate(chapters(folder), start=1):
        parts[{10: "validation", 0: "test"}.get(number % 20, "train")].append({"text": text})
    for part, rows in parts.items():
        write_rows(folder / "kjv" / f"{part}.jsonl", rows)


def chapters(folder: Path) -> list[str]:
    """Return all chapters in order, each with one verse per line."""
    verses: list[list[str]] = []
    for entry in chain(_entries("ot", folder), _entries("nt", folder)):
        if _CHAPTER.search(entry):
            verses.append([])
        verse = " ".join(html.unescape(_UNREAD.sub("", entry)).split())
        if verse and not verses:
            raise ConfigurationError(f"the files of {PACKAGE} are damaged: a verse precedes the first chapter")
        if verse:
            verses[-1].append(verse)
    return ["".join(f"{verse}\n" for verse in chapter) for chapter in verses]


def _entries(testament: str, folder: Path) -> Iterator[str]:
    """Yield the entries of a zText module: titles of books and chapters, and verses.

    `bzs` has the location of each compressed block: offset, size, uncompressed size. `bzv` has the location of each entry: block,
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
