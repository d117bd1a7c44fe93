# https://arxiv.org/abs/1410.5401
"""Reversing a sequence of symbols."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import ASK, BLANK, SyntheticPairs, words
from attnkit.registry import corpora, require_at_least


@corpora.register("reverse")
class Reverse(SyntheticPairs):
    """Reverse: repeat a sequence of symbols backwards, after `distance` blanks.

    The first symbol of the answer is the nearest, and the last one the farthest: errors that grow along the answer are errors of distance.

    Paper: Graves et al. 2014, https://arxiv.org/abs/1410.5401 (copying); Grefenstette et al. 2015, https://arxiv.org/abs/1506.02516
    (reversal)

    Args:
        length: Number of symbols.
        distance: Number of blanks between the symbols and the answer.
        vocabulary: Number of different symbols.
        train_rows: Number of training rows.
        validation_rows: Number of validation rows; 0 for none.
        test_rows: Number of test rows.
        seed: Seed of all rows.

    Raises:
        ConfigurationError: A number is out of range, or the arguments allow too few different rows.

    Example:
        >>> Reverse(length=3, vocabulary=10).pairs("test")[0]
        ('9 0 2 =', '2 0 9')
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
        return words([*symbols, *[BLANK] * self.distance, ASK]), words(symbols[::-1])
