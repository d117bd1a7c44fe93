"""The King James Bible: running text for language models."""

import html
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property

from typing_extensions import override

from attnkit.data.language_model import LanguageModelData, Part
from attnkit.data.packages import find_package_file
from attnkit.data.packing import Piece, pieces
from attnkit.data.reading import check, read_columns
from attnkit.files import UNPACKED, read_bytes, too_large
from attnkit.registry import ConfigurationError, TokenizerSpec, datasets

_PACKAGE = "sword-text-kjv"
_MODULE = "usr/share/sword/modules/texts/ztext/engKJV2006eb"

_CHAPTER = re.compile(r"<chapter [^>]*\bsID=")
_UNREAD = re.compile(r"<(note|title)\b.*?</\1>|<[^>]*>|[¶\\]", re.DOTALL)  # notes and titles with their text, other tags, print marks


@datasets.register("kjv")
class KJV(LanguageModelData):
    """The King James Bible in the text of 1769: 1,189 chapters, 31,102 verses, 4.1 million characters of one author's English, so to speak.

    A chapter is a document, with a verse on each line; notes and titles are left out. Counting chapters from 1 through the whole Bible,
    every chapter with i % 20 = 10 is for validation, with i % 20 = 0 for test, and the others are for training: 59 chapters each, from
    every kind of book. (The end of the text, as other corpora are cut, would be Revelation and some letters: one kind of text, and
    little like the rest.) Some chapters have a near copy elsewhere, as the Gospels do, and Kings and Chronicles; so what to compare with
    is a compressor that has seen the training text too, and not one that sees the test text alone.

    Data: Debian's package `sword-text-kjv`, public domain (in the United Kingdom, printing it needs permission).

    Args:
        folder: Where the package was unpacked (`dpkg-deb -x sword-text-kjv_*.deb data`); an installed one is found too.
        predict: A file with prompts to continue: `.txt` with one per line, or a table with a column `text`. Their order is kept.
        tokenizer: Spec of the tokenizer; an untrained one is trained on the training chapters.
        context: Tokens in a window.
        stride: In evaluation, tokens between the starts of windows: less than `context` leaves each scored token more context before it
            (default: `context`, no overlap).
        batch_tokens: The budget of positions in a batch over all processes.
        document_mask: Whether batches have `documents` [B, T], so that attention stays inside a chapter.
        seed: Of the order of the windows; global random states play no part.
        num_workers: Processes that prepare batches (0: the main process does).

    Raises:
        ConfigurationError: The package is neither unpacked nor installed, or is damaged, or a number is out of range.
    """

    def __init__(
        self,
        *,
        folder: str = "data",
        predict: str | None = None,
        tokenizer: TokenizerSpec = {"name": "bpe", "vocab_size": 2000},  # noqa: B006
        context: int = 256,
        stride: int | None = None,
        batch_tokens: int = 4096,
        document_mask: bool = False,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            tokenizer=tokenizer,
            context=context,
            stride=stride,
            batch_tokens=batch_tokens,
            document_mask=document_mask,
            seed=seed,
            num_workers=num_workers,
        )
        self.folder = folder
        self.predict = predict

    @cached_property
    def chapters(self) -> list[str]:
        """All chapters in order, each the text of its verses, one on a line."""
        entries = [entry for testament in ("ot", "nt") for entry in self._entries(testament)]
        verses: list[list[str]] = []
        for entry in entries:
            if _CHAPTER.search(entry):
                verses.append([])
            verse = " ".join(html.unescape(_UNREAD.sub("", entry)).split())
            if verse and not verses:
                raise ConfigurationError(f"the files of {_PACKAGE} are damaged: a verse stands before the first chapter")
            if verse:
                verses[-1].append(verse)
        return ["".join(f"{verse}\n" for verse in chapter) for chapter in verses]

    def part(self, part: Part) -> list[str]:
        """Return the chapters of a part, in order."""
        return [chapter for i, chapter in enumerate(self.chapters, start=1) if _part_of(i) == part]

    @override
    def pieces(self, part: Part) -> Iterator[Piece]:
        for chapter in self.part(part):
            yield from pieces([chapter])

    @override
    def prompts(self) -> Sequence[str]:
        if self.predict is None:
            raise ConfigurationError("kjv has no prompts to continue: set predict to a .txt file with one per line")
        check(self.predict)
        return [prompt for (prompt,) in read_columns(self.predict, ["text"])]

    def _entries(self, testament: str) -> Iterator[str]:
        """Yield the entries of a zText module: titles of books and chapters, and verses.

        `bzs` has the place of each compressed block: offset, size, size when unpacked. `bzv` has the place of each entry: block,
        offset in the unpacked block, size.
        """
        suffixes = ("bzs", "bzv", "bzz")
        paths = [find_package_file(_PACKAGE, f"{_MODULE}/{testament}.{suffix}", folder=self.folder) for suffix in suffixes]
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


def _part_of(chapter: int) -> Part:
    if chapter % 20 == 10:
        return "validation"
    return "test" if chapter % 20 == 0 else "train"
