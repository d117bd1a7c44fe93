# https://arxiv.org/abs/1511.06464
"""Copying symbols after a delay."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import ASK, BLANK, Repetition, words
from attnkit.registry import corpora, fields_as_keywords


@corpora.register("copy")
@fields_as_keywords
class Copy(Repetition):
    """Copy: repeat a sequence of symbols after `distance` blanks.

    A fixed-size state has to hold all symbols at once; attention looks each one up.

    Paper: Hochreiter and Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735; in this form Arjovsky et al. 2016,
    https://arxiv.org/abs/1511.06464

    Example:
        >>> Copy(length=3, distance=2, vocabulary=10).pairs("test")[0]
        ('4 2 6 . . =', '4 2 6')
    """

    @override
    def row(self, rng: np.random.Generator) -> tuple[str, str]:
        symbols = self.symbols(rng)
        return words([*symbols, *[BLANK] * self.distance, ASK]), words(symbols)
