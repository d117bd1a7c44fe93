# https://doi.org/10.1016/S0049-237X(08)72023-8
"""Closing nested brackets of several kinds."""

import numpy as np
from typing_extensions import override

from attnkit.corpus.synthetic import SyntheticPairs, words
from attnkit.registry import ConfigurationError, corpora, fields_as_keywords, require_at_least


@corpora.register("nested_brackets")
@fields_as_keywords
class NestedBrackets(SyntheticPairs):
    """Nested brackets: close the open brackets, innermost first (a Dyck language).

    Balanced words, `distance` tokens in total, follow the open brackets, so the matching brackets are up to `depth` + `distance`
    tokens apart. A recurrent network needs a state for each stack of open brackets.

    Paper: Chomsky and Schuetzenberger 1963, https://doi.org/10.1016/S0049-237X(08)72023-8; for networks Hewitt et al. 2020,
    https://arxiv.org/abs/2010.07515

    Args:
        depth: Number of open brackets, the length of the answer.
        distance: Number of tokens of the balanced words, even.
        vocabulary: Number of kinds of brackets.

    Example:
        >>> NestedBrackets(depth=2, distance=4, vocabulary=3).pairs("test")[0]
        ('(1 (1 (0 )0 (0 )0', ')1 )1')
    """

    depth: int = 4
    distance: int = 8
    vocabulary: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, depth=self.depth, vocabulary=self.vocabulary)
        if self.distance < 0 or self.distance % 2:
            raise ConfigurationError(f"distance must be an even number, at least 0, but is {self.distance}")

    @override
    def row(self, rng: np.random.Generator) -> tuple[str, str]:
        kinds = rng.integers(self.vocabulary, size=self.depth).tolist()
        gaps = np.bincount(rng.integers(self.depth, size=self.distance // 2), minlength=self.depth)
        tokens = [token for kind, pairs in zip(kinds, gaps, strict=True) for token in (f"({kind}", *self._balanced(rng, int(pairs)))]
        return words(tokens), words([f"){kind}" for kind in reversed(kinds)])

    def _balanced(self, rng: np.random.Generator, pairs: int) -> list[str]:
        """Return a random balanced word with this many pairs of brackets."""
        tokens: list[str] = []
        open_kinds: list[int] = []
        while pairs or open_kinds:
            if pairs and (not open_kinds or rng.random() < 0.5):
                open_kinds.append(int(rng.integers(self.vocabulary)))
                tokens.append(f"({open_kinds[-1]}")
                pairs -= 1
            else:
                tokens.append(f"){open_kinds.pop()}")
        return tokens
