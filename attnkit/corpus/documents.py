"""The documents of a running text, in chunks of any size."""

import io
from collections.abc import Iterable, Iterator

from attnkit.corpus.tables import refuse_wide
from attnkit.registry import ConfigurationError

_CHUNK = 1 << 16  # characters to read at once
_START = 1024  # bytes to recognise another encoding from


def read_documents(path: str, separator: str | None) -> Iterator[Iterable[str]]:
    """Yield the documents of a UTF-8 text file: the parts between separators, or the whole file if there is no separator."""
    if separator is None:
        yield _chunks(path)
    else:
        yield from ([document] for document in split(_chunks(path), separator))


def between(documents: Iterable[Iterable[str]], first: int, last: int) -> Iterator[Iterable[str]]:
    """Yield the text between two character positions, document by document; each must be read before the next.

    Example:
        >>> ["".join(document) for document in between([["ab", "c"], ["de"], ["f"]], 1, 4)]
        ['bc', 'd']
    """
    position = 0

    def kept(document: Iterable[str]) -> Iterator[str]:
        nonlocal position
        for chunk in document:
            yield chunk[max(0, first - position) : max(0, last - position)]
            position += len(chunk)

    for document in documents:
        if position >= last:
            return
        yield kept(document)


def split(chunks: Iterable[str], separator: str) -> Iterator[str]:
    r"""Split a text given in chunks of any size.

    Example:
        >>> list(split(["a\n", "\nb", "c"], "\n\n"))
        ['a', 'bc']
    """
    rest = ""
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(separator)
        yield from complete
    yield rest


def _chunks(path: str) -> Iterator[str]:
    try:
        with open(path, "rb") as raw, io.TextIOWrapper(raw, encoding="utf-8-sig") as file:
            refuse_wide(path, raw.peek(_START)[:_START])
            yield from iter(lambda: file.read(_CHUNK), "")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path}: not UTF-8 (byte 0x{error.object[error.start]:02x}); convert the file, as with: iconv -f ENCODING -t UTF-8"
        ) from error
