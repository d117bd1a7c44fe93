"""The error for a composition that cannot be built."""

import difflib
from collections.abc import Iterable


class ConfigurationError(ValueError):
    """A composition that cannot be built: the message says what is wrong and what to do."""


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"`, or an empty string if no candidate is close."""
    known = list(candidates)
    found = [c for c in known if c.lower() == word.lower()] or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" Did you mean {found[0]!r}?" if found else ""


def check_positive(**numbers: float | None) -> None:
    """Raise a ConfigurationError that names the first number that is given and not positive."""
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise ConfigurationError(f"{name} must be positive, but is {number}")


def require_at_least(least: int, **numbers: float | None) -> None:
    """Raise a ConfigurationError that names the first number that is given and below `least`.

    Example:
        >>> require_at_least(1, batch_tokens=0)
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: batch_tokens must be at least 1, but is 0
    """
    for name, number in numbers.items():
        if number is not None and not number >= least:
            raise ConfigurationError(f"{name} must be at least {least}, but is {number}")
