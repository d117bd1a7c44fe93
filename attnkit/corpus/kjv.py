"""The King James Bible."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from typing_extensions import override

from attnkit.corpus.base import Part, TextCorpus
from attnkit.corpus.named import Named
from attnkit.registry import corpora


@corpora.register("kjv")
class KJV(Named, TextCorpus):
    """The King James Bible in the text of 1769: 1,189 chapters, 31,102 verses, 4.1 million characters.

    A chapter is a document, with one verse per line; notes and titles are omitted. With chapters numbered from 1 through the whole Bible,
    those with i % 20 = 10 are for validation, those with i % 20 = 0 for test, and the others for training: 59 chapters each for validation
    and test, from every kind of book. (The end of the text, which is set aside in other corpora, would be Revelation and some letters: a
    single kind of text, unlike the rest.) Some chapters have near copies elsewhere, as in the Gospels, or Kings and Chronicles, so a
    compressor used as a baseline should have seen the training text too, not only the test text.

    Source: Debian's package `sword-text-kjv`, public domain (in the United Kingdom, printing it needs permission). No copy on
    the hub is known to have this text, its chapters as documents, and these splits.

    Args:
        folder: The folder with the files of `python scripts/kjv.py`.

    Raises:
        ConfigurationError: The files are missing (the message has the command that creates them), or a file is damaged.
    """

    script: ClassVar = "kjv"
    digests: ClassVar = {"train": "37dba9c879fc2248", "validation": "822ba2cc6a76bc09", "test": "7704bdcb3dcb52f1"}

    def __init__(self, *, folder: str = "data") -> None:
        super().__init__(folder=folder)

    @override
    def documents(self, part: Part) -> Iterator[Iterable[str]]:
        return iter(self.read(part, ["text"]))
