# https://doi.org/10.1162/neco.1997.9.8.1735
"""Adding the two marked numbers of a sequence."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import ASK, SyntheticPairs, words
from attnkit.registry import ConfigurationError, corpora, require_at_least


@corpora.register("adding")
class Adding(SyntheticPairs):
    """Adding: the sum of the two marked numbers of a sequence, which are `distance` tokens apart.

    As tokens: the numbers are from 0 to `vocabulary` - 1, a marked number begins with `+`, and the sum is one token.

    Paper: Hochreiter and Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735 (with real numbers)

    Args:
        length: Number of numbers.
        distance: Distance of the marked numbers, from 1 to `length` - 1 (default: any, differing from row to row).
        vocabulary: Number of different numbers.
        train_rows: Number of training rows.
        validation_rows: Number of validation rows; 0 for none.
        test_rows: Number of test rows.
        seed: Seed of all rows.

    Raises:
        ConfigurationError: A number is out of range, or the arguments allow too few different rows.

    Example:
        >>> Adding(length=5, distance=3, vocabulary=10).pairs("test")[0]
        ('+8 1 4 +1 0 =', '9')
    """

    def __init__(
        self,
        *,
        length: int = 16,
        distance: int | None = None,
        vocabulary: int = 10,
        train_rows: int = 10_000,
        validation_rows: int = 500,
        test_rows: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(train_rows=train_rows, validation_rows=validation_rows, test_rows=test_rows, seed=seed)
        require_at_least(2, length=length, vocabulary=vocabulary)
        if distance is not None and not 1 <= distance < length:
            raise ConfigurationError(f"distance must be from 1 to length - 1 = {length - 1}, but is {distance}")
        self.length, self.distance, self.vocabulary = length, distance, vocabulary

    @override
    def row(self, rng: np.random.Generator) -> tuple[str, str]:
        numbers = rng.integers(self.vocabulary, size=self.length).tolist()
        distance = int(rng.integers(1, self.length)) if self.distance is None else self.distance
        first = int(rng.integers(self.length - distance))
        marked = (first, first + distance)
        tokens = [f"+{number}" if place in marked else number for place, number in enumerate(numbers)]
        return words([*tokens, ASK]), str(sum(numbers[place] for place in marked))
