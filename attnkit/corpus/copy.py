# https://arxiv.org/abs/1511.06464
"""Copying symbols after a delay."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import ASK, BLANK, SyntheticPairs, words
from attnkit.registry import corpora, require_at_least


@corpora.register("copy")
class Copy(SyntheticPairs):
    """Copy: repeat a sequence of symbols after `distance` blanks.

    A state of fixed size has to hold all symbols at once; attention looks each of them up.

    Paper: Hochreiter and Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735; in this form Arjovsky et al. 2016,
    https://arxiv.org/abs/1511.06464

    Args:
        length: Number of symbols.
        distance: Number of blanks between the symbols and their copy.
        vocabulary: Number of different symbols.
        train_rows: Number of training rows.
        validation_rows: Number of validation rows; 0 for none.
        test_rows: Number of test rows.
        seed: Seed of all rows.

    Raises:
        ConfigurationError: A number is out of range, or the arguments allow too few different rows.

    Example:
        >>> Copy(length=3, distance=2, vocabulary=10).pairs("test")[0]
        ('4 2 6 . . =', '4 2 6')
    """

    def __init__(
        self,
        *,
        length: int = 8,
        distance: int = 0,
        vocabulary: int = 8,
        train_rows: int = 10_000,
        validation_rows: int = 500,
        test_rows: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(train_rows=train_rows, validation_rows=validation_rows, test_rows=test_rows, seed=seed)
        require_at_least(1, length=length, vocabulary=vocabulary)
        require_at_least(0, distance=distance)
        self.length, self.distance, self.vocabulary = length, distance, vocabulary

    @override
    def row(self, rng: np.random.Generator) -> tuple[str, str]:
        symbols = rng.integers(self.vocabulary, size=self.length).tolist()
        return words([*symbols, *[BLANK] * self.distance, ASK]), words(symbols)
