# https://arxiv.org/abs/1410.5401
"""Reversing a sequence of symbols."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import ASK, BLANK, SyntheticPairs, words
from attnkit.registry import corpora, fields_as_keywords, require_at_least


@corpora.register("reverse")
@fields_as_keywords
class Reverse(SyntheticPairs):
    """Reverse: repeat a sequence of symbols backwards, after `distance` blanks.

    The first symbol of the answer is the nearest, and the last one the farthest: errors that grow along the answer are errors of distance.

    Paper: Graves et al. 2014, https://arxiv.org/abs/1410.5401 (copying); Grefenstette et al. 2015, https://arxiv.org/abs/1506.02516
    (reversal)

    Args:
        length: Number of symbols.
        distance: Number of blanks between the symbols and the answer.
        vocabulary: Number of different symbols.

    Raises:
        ConfigurationError: A number is out of range, or the arguments allow too few different rows.

    Example:
        >>> Reverse(length=3, vocabulary=10).pairs("test")[0]
        ('9 0 2 =', '2 0 9')
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
        return words([*symbols, *[BLANK] * self.distance, ASK]), words(symbols[::-1])
