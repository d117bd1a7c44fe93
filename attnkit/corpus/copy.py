# https://arxiv.org/abs/1511.06464
"""Copying symbols after a delay."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import ASK, BLANK, SyntheticPairs, words
from attnkit.registry import corpora, fields_as_keywords, require_at_least


@corpora.register("copy")
@fields_as_keywords
class Copy(SyntheticPairs):
    """Copy: repeat a sequence of symbols after `distance` blanks.

    A state of fixed size has to hold all symbols at once; attention looks each of them up.

    Paper: Hochreiter and Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735; in this form Arjovsky et al. 2016,
    https://arxiv.org/abs/1511.06464

    Args:
        length: Number of symbols.
        distance: Number of blanks between the symbols and their copy.
        vocabulary: Number of different symbols.

    Raises:
        ConfigurationError: A number is out of range, or the arguments allow too few different rows.

    Example:
        >>> Copy(length=3, distance=2, vocabulary=10).pairs("test")[0]
        ('4 2 6 . . =', '4 2 6')
    """

    length: int = 8
    distance: int = 0
    vocabulary: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, length=self.length, vocabulary=self.vocabulary)
        require_at_least(0, distance=self.distance)

    @override
    def row(self, rng: np.random.Generator) -> tuple[str, str]:
        symbols = rng.integers(self.vocabulary, size=self.length).tolist()
        return words([*symbols, *[BLANK] * self.distance, ASK]), words(symbols)
