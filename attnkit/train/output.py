"""The output of a command: stdout, or a file that is written atomically."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from lightning.pytorch.utilities import rank_zero_only

from attnkit.files import atomic
from attnkit.registry import ConfigurationError
from attnkit.tokenizer.unknown import UnknownTokens


@rank_zero_only
def say(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr)


@contextmanager
def notes() -> Iterator[None]:
    """Print warnings about unknown tokens as notes on stderr, and others as usual."""
    with warnings.catch_warnings():
        warnings.filterwarnings("default", category=UnknownTokens)
        show = warnings.showwarning

        def show_or_say(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, UnknownTokens):
                say(f"note: {message}")
            else:
                show(message, category, *rest, **more)

        warnings.showwarning = show_or_say
        yield


@contextmanager
def output(out: str | None) -> Iterator[TextIO]:
    """Yield stdout, or, given `out`, a file that takes this name at the end of the `with` block unless the block fails."""
    if out is None:
        yield sys.stdout
        return
    if Path(out).is_dir():
        raise ConfigurationError(f"--out {out} is a folder; give the name of a file")
    with atomic(Path(out)) as draft, draft.open("w", encoding="utf-8") as file:
        yield file
    print(f"Wrote {out}")
