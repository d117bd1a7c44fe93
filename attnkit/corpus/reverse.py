# https://arxiv.org/abs/1410.5401
"""Reversing a sequence of symbols."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import ASK, BLANK, Repetition, words
from attnkit.registry import corpora, fields_as_keywords


@corpora.register("reverse")
@fields_as_keywords
class Reverse(Repetition):
    """Reverse: repeat a sequence of symbols backwards, after `distance` blanks.

    The first symbol of the answer is the nearest and the last one the farthest, so errors that grow along the answer are due to distance.

    Paper: Graves et al. 2014, https://arxiv.org/abs/1410.5401 (copying); Grefenstette et al. 2015, https://arxiv.org/abs/1506.02516
    (reversal)

    Example:
        >>> Reverse(length=3, vocabulary=10).pairs("test")[0]
        ('9 0 2 =', '2 0 9')
    """

    @override
    def row(self, rng: np.random.Generator) -> tuple[str, str]:
        symbols = self.symbols(rng)
        return words([*symbols, *[BLANK] * self.distance, ASK]), words(symbols[::-1])
