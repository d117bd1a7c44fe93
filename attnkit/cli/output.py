"""Where a command writes: to stdout, or to a file that appears whole or not at all."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from lightning.pytorch.utilities import rank_zero_only

from attnkit.registry import ConfigurationError
from attnkit.task.checkpoint import atomic


@rank_zero_only
def say(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr)


@contextmanager
def output(out: str | None) -> Iterator[TextIO]:
    """Yield stdout, or with `out` a file that takes this name at the end of the `with` block, if nothing failed in it.

    Raises:
        ConfigurationError: `out` is a folder.
    """
    if out is None:
        yield sys.stdout
        return
    if Path(out).is_dir():
        raise ConfigurationError(f"--out {out} is a folder; give the name of a file")
    with atomic(Path(out)) as draft, draft.open("w", encoding="utf-8") as file:
        yield file
    print(f"Wrote {out}")
