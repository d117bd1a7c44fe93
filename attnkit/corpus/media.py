"""Images and sounds in their stored form."""

import io
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torch import Tensor

from attnkit.corpus.tables import BadRows
from attnkit.files import nearest_beside


class Unreadable(ValueError):
    """An image or a sound cannot be used; the message says why."""


def shown(path: Path) -> str:
    r"""Return a path as text that can be written to any file: bytes of a name that are not UTF-8 become `\xff`.

    Example:
        >>> print(shown(Path("caf\udce9.png")))
        caf\xe9.png
    """
    return os.fsencode(path).decode(errors="backslashreplace")


@dataclass(frozen=True)
class Stored:
    """An image or a sound: a file or its content."""

    name: str  # in messages and predictions
    is_sound: bool
    path: str | None
    content: bytes | None = None  # None: the content of the file

    def open(self) -> IO[bytes]:
        """Open for reading; raise `Unreadable` if there is no such regular file or it cannot be read."""
        if self.content is not None:
            return io.BytesIO(self.content)
        if self.path is None:
            raise Unreadable("it is missing")
        path = Path(self.path)
        if not os.path.isfile(path):  # unlike Path.is_file, False for a name that the system rejects
            if os.path.lexists(path):  # a pipe or a device could block or never end
                raise Unreadable("it is not a regular file")
            raise Unreadable(f"there is no such file (looked in {path.parent.resolve()}).{nearest_beside(path)}")
        try:
            return path.open("rb")
        except OSError as error:
            raise Unreadable(f"it cannot be read: {error.strerror}") from error


def read_usable(files: Iterable[Stored], read: Callable[[Stored], Tensor], bad_rows: BadRows) -> dict[int, Tensor]:
    """Return the tensors that `read` makes from the files, by index; unusable files are bad rows."""
    found: dict[int, Tensor] = {}
    for i, file in enumerate(files):
        try:
            found[i] = read(file)
        except Unreadable as error:
            bad_rows.add(file.name, str(error))
    return found
