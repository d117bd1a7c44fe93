"""A small King James Bible in the format of Debian's package sword-text-kjv, with verses of our own, and its converted files."""

import random
import struct
import zlib
from pathlib import Path

from kjv import convert

MODULE = "usr/share/sword/modules/texts/ztext/engKJV2006eb"
WORDS = ["the", "a", "king", "man", "river", "stone", "house", "said", "went", "saw", "and", "unto", "of", "day", "light", "great", "’tis"]


def verses(chapters: int) -> list[list[str]]:
    """Return the plain verses of each chapter, always the same."""
    rng = random.Random(0)
    return [[" ".join(rng.choices(WORDS, k=rng.randint(6, 12))).capitalize() + "." for _ in range(10)] for _ in range(chapters)]


def write(folder: Path, chapters: int = 45) -> None:
    """Write a module of so many chapters: books of ten, the first two in the Old Testament."""
    texts = verses(chapters)
    books = [range(start, min(start + 10, chapters)) for start in range(0, chapters, 10)]
    for testament, own in (("ot", books[:2]), ("nt", books[2:])):
        _write_testament(folder / MODULE, testament, [[_entries(i, texts[i]) for i in book] for book in own])
    convert(folder)


def _entries(number: int, verses: list[str]) -> list[str]:
    """Return the entry of a chapter's title and those of its verses, marked up as in the package."""
    marked = [verse.replace("king", '<w lemma="strong:H0001">king</w>').replace("day", "<divineName>day</divineName>") for verse in verses]
    marked[0] = f'<title canonical="true" type="psalm">A song</title><div sID="p{number}" type="x-p"/>¶ {marked[0]} '
    marked[1] += f'<note placement="foot"><reference type="annotateRef">{number}.2 </reference>made: or, built</note> '
    marked[-1] += f' <chapter eID="B.{number}"/> <div canonical="true" eID="gen{number}" osisID="B" type="book"/>'
    return [f'<chapter n="{number}" osisID="B.{number}" sID="B.{number}"/> ', *marked]


def _write_testament(folder: Path, testament: str, books: list[list[list[str]]]) -> None:
    """Write a block for the header of the testament, and one for each book, as `osis2mod` does."""
    title = '<div canonical="true" osisID="B" sID="gen1" type="book"/> <title level="1" type="main">A BOOK</title> '
    blocks = [['<milestone type="x-importer" subType="x-osis2mod"/>'], *([title, *(e for c in book for e in c)] for book in books)]
    places, packed, starts = [struct.pack("<IIH", 0, 0, 0)], b"", []
    for number, block in enumerate(blocks):
        data = b""
        for entry in block:
            text = entry.encode()
            places.append(struct.pack("<IIH", number, len(data), len(text)))
            data += text
        squeezed = zlib.compress(data)
        starts.append(struct.pack("<III", len(packed), len(squeezed), len(data)))
        packed += squeezed
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, content in (("bzs", b"".join(starts)), ("bzv", b"".join(places)), ("bzz", packed)):
        (folder / f"{testament}.{suffix}").write_bytes(content)
