"""The error for a composition that cannot be built."""

import difflib
from collections.abc import Iterable, Sequence


class ConfigurationError(ValueError):
    """A composition that cannot be built: the message says what is wrong and what to do."""


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"`, or an empty string if no candidate is close; of two equally close ones, both.

    Example:
        >>> nearest("epochs", ["min_epochs", "max_epochs", "max_steps"])
        " Did you mean 'max_epochs' or 'min_epochs'?"
        >>> nearest("seed", ["seed_everything", "trust"])
        " Did you mean 'seed_everything'?"
    """
    known = sorted(set(candidates))
    found = [c for c in known if c.lower() == word.lower()] or difflib.get_close_matches(word, known, n=2, cutoff=0.5)
    if len(found) == 2 and len({difflib.SequenceMatcher(None, c, word).ratio() for c in found}) == 2:
        found.pop()
    found = found or [c for c in known if c.startswith(f"{word}_")][:1]
    return did_you_mean(sorted(found))


def did_you_mean(found: Sequence[str]) -> str:
    """Return the question whether one of the names `found` was meant, as `nearest` asks it; an empty string if there are none.

    Example:
        >>> did_you_mean(["data.seed", "seed_everything"])
        " Did you mean 'data.seed' or 'seed_everything'?"
    """
    return f" Did you mean {' or '.join(map(repr, found))}?" if found else ""


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
