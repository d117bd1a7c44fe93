# https://arxiv.org/abs/2209.11895
"""Induction: which token followed the current one last time?"""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import SyntheticPairs, words
from attnkit.registry import ConfigurationError, corpora, fields_as_keywords, require_at_least


@corpora.register("induction")
@fields_as_keywords
class Induction(SyntheticPairs):
    """Induction: return the token that followed the previous occurrence of the last token, `distance` tokens back.

    The last token occurs exactly once before. Two attention layers suffice: one attends to the preceding token, the other to its match
    (an induction head).

    Paper: Olsson et al. 2022, https://arxiv.org/abs/2209.11895

    Args:
        length: Number of tokens of the prompt.
        distance: Distance between the two occurrences, from 2 to `length` - 1 (default: random, differing from row to row).
        vocabulary: Number of distinct symbols.

    Example:
        >>> Induction(length=6, distance=4, vocabulary=10).pairs("test")[0]
        ('3 1 4 5 5 1', '4')
    """

    length: int = 16
    distance: int | None = None
    vocabulary: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(3, length=self.length)
        require_at_least(2, vocabulary=self.vocabulary)
        if self.distance is not None and not 2 <= self.distance < self.length:
            raise ConfigurationError(f"distance must be from 2 to length - 1 = {self.length - 1}, but is {self.distance}")

    @override
    def row(self, rng: np.random.Generator) -> tuple[str, str]:
        query = int(rng.integers(self.vocabulary))
        others = rng.integers(self.vocabulary - 1, size=self.length)
        tokens = (others + (others >= query)).tolist()  # anything but the query
        distance = int(rng.integers(2, self.length)) if self.distance is None else self.distance
        tokens[-1] = tokens[-1 - distance] = query
        return words(tokens), str(tokens[-distance])
