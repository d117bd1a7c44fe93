"""Which tables a model shares."""

from typing import Literal

from attnkit.registry import ConfigurationError

Tie = Literal["none", "output", "inputs", "all"]


def check_tie(tie: str, allowed: tuple[str, ...]) -> None:
    """Raise unless `tie` is one of the allowed values."""
    if tie not in allowed:
        raise ConfigurationError(f"tie must be one of {', '.join(allowed)}, but is {tie!r}")
