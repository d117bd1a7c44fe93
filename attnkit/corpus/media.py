"""Images and sounds as they are stored."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from attnkit.registry import nearest


class Unreadable(ValueError):
    """An image or a sound cannot be used; the message says why."""


@dataclass(frozen=True)
class Stored:
    """An image or a sound: a file, or its content."""

    name: str  # in messages and predictions
    is_sound: bool
    path: str | None
    content: bytes | None = None  # None: that of the file

    def open(self) -> IO[bytes]:
        """Open it for reading; raise `Unreadable` if there is no such regular file."""
        if self.content is not None:
            return io.BytesIO(self.content)
        if self.path is None:
            raise Unreadable("there is none")
        path = Path(self.path)
        if not path.exists():
            beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
            raise Unreadable(f"there is no such file (looked in {path.parent.resolve()}).{nearest(path.name, beside)}")
        if not path.is_file():  # a pipe or a device could block or never end
            raise Unreadable("it is not a regular file")
        return path.open("rb")
