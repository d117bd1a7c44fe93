"""Sets aside training rows for validation and test."""

from collections.abc import Hashable, Sequence

import numpy as np

from attnkit.registry import ConfigurationError


def set_aside(keys: Sequence[Hashable], *, validation: float, test: float, seed: int, what: str) -> tuple[list[int], list[int], list[int]]:
    """Assign rows to training, validation and test, by index: rows with the same key are in the same split.

    The fractions, whose sum is below 1, refer to the distinct keys, called `what` in messages. A requested split must not be empty.

    Example:
        >>> set_aside(["a", "b", "a", "c"], validation=0.4, test=0.0, seed=0, what="distinct words")
        ([0, 1, 2], [3], [])
    """
    distinct = list(dict.fromkeys(keys))
    counts = {"validation_fraction": (validation, round(validation * len(distinct))), "test_fraction": (test, round(test * len(distinct)))}
    total = sum(count for _, count in counts.values())
    for name, (fraction, count) in counts.items():
        if fraction > 0 and not 0 < count <= total < len(distinct):
            raise ConfigurationError(f"{name}={fraction} of {len(distinct)} {what} is {count}: every split needs at least one")
    chosen = np.random.default_rng(seed).choice(len(distinct), size=total, replace=False)
    part_of = {distinct[i]: 1 if place < counts["validation_fraction"][1] else 2 for place, i in enumerate(chosen)}
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for i, key in enumerate(keys):
        parts[part_of.get(key, 0)].append(i)
    return parts
