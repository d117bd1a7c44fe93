# https://arxiv.org/abs/2312.04927
"""Multi-query associative recall."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import BLANK, Synthetic, words
from attnkit.registry import ConfigurationError, corpora, require_at_least


@corpora.register("associative_recall")
class AssociativeRecall(Synthetic):
    """Multi-query associative recall: pairs of a key and a value, then keys, each answered with its value.

    Attention solves it at any width; a mixer whose state does not grow needs a state large enough for all pairs. As in Zoology, keys and
    values are different tokens, each answer follows its query directly, and only answers are scored. Unlike there, the queries come in
    random order after `distance` blanks, and each answer is read before the next query.

    Paper: Arora et al. 2023, https://arxiv.org/abs/2312.04927

    Since a row has several answers, its framing is `prompted_text`; with one query, too.

    Args:
        pairs: Number of pairs of a key and a value.
        queries: Number of keys that are asked for, at most `pairs` (default: all).
        distance: Number of blanks between the pairs and the first query.
        vocabulary: Number of different keys, and of different values.
        train_rows: Number of training rows.
        validation_rows: Number of validation rows; 0 for none.
        test_rows: Number of test rows.
        seed: Seed of all rows.

    Raises:
        ConfigurationError: A number is out of range, or the arguments allow too few different rows.

    Example:
        >>> AssociativeRecall(pairs=2, vocabulary=10).turns("test")[0]
        ('k7 v2 k5 v7 k5', 'v7', 'k7', 'v2')
    """

    def __init__(
        self,
        *,
        pairs: int = 4,
        queries: int | None = None,
        distance: int = 0,
        vocabulary: int = 32,
        train_rows: int = 10_000,
        validation_rows: int = 500,
        test_rows: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(train_rows=train_rows, validation_rows=validation_rows, test_rows=test_rows, seed=seed)
        require_at_least(1, pairs=pairs)
        require_at_least(0, distance=distance)
        queries = pairs if queries is None else queries
        if not 1 <= queries <= pairs <= vocabulary:
            raise ConfigurationError(
                f"queries={queries}, pairs={pairs} and vocabulary={vocabulary} must not decrease in this order: keys differ in a row"
            )
        self.pairs, self.queries, self.distance, self.vocabulary = pairs, queries, distance, vocabulary

    @override
    def row(self, rng: np.random.Generator) -> tuple[str, ...]:
        keys = [f"k{key}" for key in rng.choice(self.vocabulary, self.pairs, replace=False)]
        values = [f"v{value}" for value in rng.integers(self.vocabulary, size=self.pairs)]
        shown = [token for pair in zip(keys, values, strict=True) for token in pair]
        first, *others = rng.choice(self.pairs, self.queries, replace=False)
        answered = [text for i in others for text in (keys[i], values[i])]
        return words([*shown, *[BLANK] * self.distance, keys[first]]), values[first], *answered
