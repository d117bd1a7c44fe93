# https://arxiv.org/abs/2312.00752
"""Copying symbols that are scattered among blanks."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import ASK, BLANK, SyntheticPairs, words
from attnkit.registry import corpora, require_at_least


@corpora.register("selective_copy")
class SelectiveCopy(SyntheticPairs):
    """Selective copy: repeat the symbols that are scattered among `distance` blanks.

    The gaps differ from row to row, so a fixed filter over time, as a convolution or a linear recurrence has, cannot solve it.

    Paper: Gu and Dao 2023, https://arxiv.org/abs/2312.00752, section 3.1

    Args:
        length: Number of symbols.
        distance: Number of blanks among them.
        vocabulary: Number of different symbols.
        train_rows: Number of training rows.
        validation_rows: Number of validation rows; 0 for none.
        test_rows: Number of test rows.
        seed: Seed of all rows.

    Raises:
        ConfigurationError: A number is out of range, or the arguments allow too few different rows.

    Example:
        >>> SelectiveCopy(length=3, distance=4, vocabulary=10).pairs("test")[0]
        ('. 7 8 5 . . . =', '7 8 5')
    """

    def __init__(
        self,
        *,
        length: int = 8,
        distance: int = 16,
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
        tokens: list[object] = [BLANK] * (self.length + self.distance)
        for place, symbol in zip(np.sort(rng.choice(len(tokens), self.length, replace=False)), symbols, strict=True):
            tokens[place] = symbol
        return words([*tokens, ASK]), words(symbols)
