"""The encoding of stdout. No torch."""

import io
import sys


def escape_unprintable() -> None:
    r"""From now on, print characters that the encoding of stdout lacks as `\xe9`, as on stderr, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
