"""The King James Bible."""

import html
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path

from typing_extensions import override

from attnkit.corpus.base import Part, TextCorpus
from attnkit.corpus.packages import find_package_file
from attnkit.files import UNPACKED, read_bytes, too_large
from attnkit.registry import ConfigurationError, corpora

_PACKAGE = "sword-text-kjv"
_MODULE = "usr/share/sword/modules/texts/ztext/engKJV2006eb"
_PARTS: dict[int, Part] = {10: "validation", 0: "test"}

_CHAPTER = re.compile(r"<chapter [^>]*\bsID=")
_UNREAD = re.compile(r"<(note|title)\b.*?</\1>|<[^>]*>|[¶\\]", re.DOTALL)  # notes and titles with their text, other tags, typographic marks


@corpora.register("kjv")
class KJV(TextCorpus):
    """The King James Bible in the text of 1769: 1,189 chapters, 31,102 verses, 4.1 million characters.

    A chapter is a document, with one verse per line; notes and titles are omitted. With chapters numbered from 1 through the whole Bible,
    those with i % 20 = 10 are for validation, those with i % 20 = 0 for test, and the others for training: 59 chapters each for validation
    and test, from every kind of book. (The end of the text, where other corpora are cut, would be Revelation and some letters: a single
    kind of text, unlike the rest.) Some chapters have near copies elsewhere, as in the Gospels, or Kings and Chronicles; so a compressor
    used as a baseline should have seen the training text too, not only the test text.

    Source: Debian's package `sword-text-kjv`, public domain (in the United Kingdom, printing it needs permission).

    Args:
        folder: The folder with the unpacked package; an installed package is found too.

    Raises:
        ConfigurationError: The package is neither unpacked nor installed (the message has the commands to get it), or is damaged.
    """

    def __init__(self, *, folder: str = "data") -> None:
        super().__init__()
        self.folder = folder

    @override
    def check(self, part: Part) -> None:
        self._files("ot")

    @override
    def documents(self, part: Part) -> Iterator[Iterable[str]]:
        return ([chapter] for i, chapter in enumerate(self.chapters, start=1) if _PARTS.get(i % 20, "train") == part)

    @cached_property
    def chapters(self) -> list[str]:
        """All chapters in order, each with one verse per line."""
        verses: list[list[str]] = []
        for entry in chain(self._entries("ot"), self._entries("nt")):
            if _CHAPTER.search(entry):
                verses.append([])
            verse = " ".join(html.unescape(_UNREAD.sub("", entry)).split())
            if verse and not verses:
                raise ConfigurationError(f"the files of {_PACKAGE} are damaged: a verse precedes the first chapter")
            if verse:
                verses[-1].append(verse)
        return ["".join(f"{verse}\n" for verse in chapter) for chapter in verses]

    def _files(self, testament: str) -> list[Path]:
        return [find_package_file(_PACKAGE, f"{_MODULE}/{testament}.{suffix}", folder=self.folder) for suffix in ("bzs", "bzv", "bzz")]

    def _entries(self, testament: str) -> Iterator[str]:
        """Yield the entries of a zText module: titles of books and chapters, and verses.

        `bzs` has the location of each compressed block: offset, size, uncompressed size. `bzv` has the location of each entry: block,
        offset in the uncompressed block, size.
        """
        paths = self._files(testament)
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
            raise ConfigurationError(f"{paths[0].with_suffix('')} is damaged ({error}): unpack the package {_PACKAGE} again") from error
