"""A hash of rows."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

Cell = TypeVar("Cell", str, bytes)


class Fingerprint:
    """A hash of texts, taken as they are read.

    Example:
        >>> found = Fingerprint()
        >>> list(found.of(["ab", "c"])), found.value == fingerprint(["ab", "c"])
        (['ab', 'c'], True)
    """

    def __init__(self) -> None:
        self._total = hashlib.sha256()

    @property
    def value(self) -> str:
        """The hash of what was read so far."""
        return self._total.hexdigest()

    def add(self, cell: str | bytes) -> None:
        """Add a text."""
        data = cell if isinstance(cell, bytes) else cell.encode(errors="surrogatepass")  # tokenizers reject surrogates clearly
        self._total.update(len(data).to_bytes(8, "little"))
        self._total.update(data)

    def of(self, cells: Iterable[Cell]) -> Iterator[Cell]:
        """Yield texts, and add each."""
        for cell in cells:
            self.add(cell)
            yield cell


def fingerprint(cells: Iterable[str | bytes]) -> str:
    """Return a hash of texts: of their content, their boundaries and their order.

    Example:
        >>> fingerprint(["ab", "c"]) == fingerprint(iter([b"ab", "c"]))
        True
        >>> fingerprint(["ab", "c"]) == fingerprint(["a", "bc"])
        False
    """
    found = Fingerprint()
    for cell in cells:
        found.add(cell)
    return found.value
