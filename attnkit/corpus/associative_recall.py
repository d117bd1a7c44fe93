# https://arxiv.org/abs/2312.04927
"""Multi-query associative recall."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import BLANK, Synthetic, words
from attnkit.registry import ConfigurationError, corpora, fields_as_keywords, require_at_least


@corpora.register("associative_recall")
@fields_as_keywords
class AssociativeRecall(Synthetic):
    """Multi-query associative recall: key-value pairs, then keys, each to be answered with its value.

    Attention solves it at any width; a mixer with a fixed-size state needs a state large enough for all pairs. As in Zoology, keys and
    values are different tokens, each answer directly follows its query, and only answers and the end of the row are scored. Unlike there,
    the queries come in random order after `distance` blanks, and each answer is read before the next query.

    Paper: Arora et al. 2023, https://arxiv.org/abs/2312.04927

    Since a row can have several answers, its framing is `prompted_text`, even with one query.

    Args:
        pairs: Number of key-value pairs.
        queries: Number of keys to ask for, at most `pairs` (default: all).
        distance: Number of blanks between the pairs and the first query.
        vocabulary: Number of distinct keys, and of distinct values.

    Example:
        >>> AssociativeRecall(pairs=2, vocabulary=10).turns("test")[0]
        ('k7 v2 k5 v7 k5', 'v7', 'k7', 'v2')
    """

    pairs: int = 4
    queries: int | None = None
    distance: int = 0
    vocabulary: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, pairs=self.pairs)
        require_at_least(0, distance=self.distance)
        self.queries = self.pairs if self.queries is None else self.queries
        if not 1 <= self.queries <= self.pairs <= self.vocabulary:
            sizes = f"queries={self.queries}, pairs={self.pairs} and vocabulary={self.vocabulary}"
            raise ConfigurationError(f"{sizes} must not decrease in this order, because the keys of a row are distinct")

    @override
    def row(self, rng: np.random.Generator) -> tuple[str, ...]:
        keys = [f"k{key}" for key in rng.choice(self.vocabulary, self.pairs, replace=False)]
        values = [f"v{value}" for value in rng.integers(self.vocabulary, size=self.pairs)]
        shown = [token for pair in zip(keys, values, strict=True) for token in pair]
        first, *others = rng.choice(self.pairs, self.queries, replace=False)
        answered = [text for i in others for text in (keys[i], values[i])]
        return words([*shown, *[BLANK] * self.distance, keys[first]]), values[first], *answered
