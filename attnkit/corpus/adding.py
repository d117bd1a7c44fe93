# https://doi.org/10.1162/neco.1997.9.8.1735
"""Adding the two marked numbers of a sequence."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import ASK, SyntheticPairs, words
from attnkit.registry import ConfigurationError, corpora, fields_as_keywords, require_at_least


@corpora.register("adding")
@fields_as_keywords
class Adding(SyntheticPairs):
    """Adding: return the sum of the two marked numbers of a sequence, which are `distance` tokens apart.

    The numbers are tokens from 0 to `vocabulary` - 1, a marked number begins with `+`, and the sum is one token.

    Paper: Hochreiter and Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735 (with real numbers)

    Args:
        length: Number of numbers.
        distance: Distance between the marked numbers, from 1 to `length` - 1 (default: random, differing from row to row).
        vocabulary: Number of distinct numbers.

    Example:
        >>> Adding(length=5, distance=3, vocabulary=10).pairs("test")[0]
        ('+8 1 4 +1 0 =', '9')
    """

    length: int = 16
    distance: int | None = None
    vocabulary: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(2, length=self.length, vocabulary=self.vocabulary)
        if self.distance is not None and not 1 <= self.distance < self.length:
            raise ConfigurationError(f"distance must be from 1 to length - 1 = {self.length - 1}, but is {self.distance}")

    @override
    def row(self, rng: np.random.Generator) -> tuple[str, str]:
        numbers = rng.integers(self.vocabulary, size=self.length).tolist()
        distance = int(rng.integers(1, self.length)) if self.distance is None else self.distance
        first = int(rng.integers(self.length - distance))
        marked = (first, first + distance)
        tokens = [f"+{number}" if place in marked else number for place, number in enumerate(numbers)]
        return words([*tokens, ASK]), str(sum(numbers[place] for place in marked))
