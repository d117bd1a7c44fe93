"""A part of the training data set aside for validation."""

from collections.abc import Hashable, Sequence

import numpy as np

from attnkit.registry import ConfigurationError


def check_validation(validation: object, fraction: float) -> None:
    """Refuse a `validation_fraction` that is none, or that comes beside validation data.

    Raises:
        ConfigurationError: It is out of range, or both are given.
    """
    if not 0 <= fraction < 1:
        raise ConfigurationError(f"validation_fraction must be at least 0 and below 1, but is {fraction}")
    if validation is not None and fraction > 0:
        raise ConfigurationError("validation and validation_fraction exclude each other: leave one out")


def set_aside(keys: Sequence[Hashable], fraction: float, *, seed: int, what: str) -> tuple[list[int], list[int]]:
    """Choose which examples are for training and which for validation: all with the same key are on the same side.

    Args:
        keys: One for each example.
        fraction: The part of the distinct keys that is set aside, above 0 and below 1.
        seed: Of the choice.
        what: The keys in words, for the message.

    Returns:
        The indices of both parts, in order.

    Raises:
        ConfigurationError: A part would be empty.

    Example:
        >>> set_aside(["a", "b", "a", "c"], 0.4, seed=0, what="distinct words")
        ([0, 1, 2], [3])
    """
    distinct = list(dict.fromkeys(keys))
    count = round(fraction * len(distinct))
    if not 0 < count < len(distinct):
        raise ConfigurationError(f"validation_fraction={fraction} of {len(distinct)} {what} is {count}: both parts must have some")
    chosen = np.random.default_rng(seed).choice(len(distinct), size=count, replace=False)
    aside = {distinct[i] for i in chosen}
    return [i for i, key in enumerate(keys) if key not in aside], [i for i, key in enumerate(keys) if key in aside]
