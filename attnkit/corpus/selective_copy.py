# https://arxiv.org/abs/2312.00752
"""Copying symbols that are scattered among blanks."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import ASK, BLANK, Repetition, words
from attnkit.registry import corpora, fields_as_keywords


@corpora.register("selective_copy")
@fields_as_keywords
class SelectiveCopy(Repetition):
    """Selective copy: repeat the symbols that are scattered among `distance` blanks.

    The gaps differ from row to row, so a fixed filter over time, such as a convolution or a linear recurrence, cannot solve it.

    Paper: Gu and Dao 2023, https://arxiv.org/abs/2312.00752, section 3.1

    Args:
        distance: Number of blanks among the symbols.

    Example:
        >>> SelectiveCopy(length=3, distance=4, vocabulary=10).pairs("test")[0]
        ('. 7 8 5 . . . =', '7 8 5')
    """

    distance: int = 16

    @override
    def row(self, rng: np.random.Generator) -> tuple[str, str]:
        symbols = self.symbols(rng)
        tokens: list[object] = [BLANK] * (self.length + self.distance)
        for place, symbol in zip(np.sort(rng.choice(len(tokens), self.length, replace=False)), symbols, strict=True):
            tokens[place] = symbol
        return words([*tokens, ASK]), words(symbols)
