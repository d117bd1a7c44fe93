# https://arxiv.org/abs/1301.3781
"""Nearest neighbours and analogies of word vectors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnkit.registry import ConfigurationError, nearest

Neighbour = tuple[str, float]


class WordSpace:
    r"""Words and their vectors [V, D], compared by their cosine.

    Equation:
        $$\mathrm{neighbours}(a) = \operatorname{argmax}_w \cos(v_w, v_a), \quad a : b = c :
        \operatorname{argmax}_{w \notin \{a, b, c\}} \cos(v_w, \hat v_b - \hat v_a + \hat v_c)$$

    with vectors of unit length, $\hat v$ (Mikolov et al. 2013; Levy and Goldberg 2014 call the analogy 3CosAdd).

    Example:
        >>> space = WordSpace(["man", "woman", "king", "queen"], torch.tensor([[1.0, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1]]))
        >>> [word for word, _ in space.neighbours("queen", 2)]
        ['woman', 'king']
        >>> space.analogy("man", "woman", "king", 1)[0][0]
        'queen'
    """

    def __init__(self, words: Sequence[str], vectors: Tensor) -> None:
        self.words = list(words)
        self.vectors = torch.nn.functional.normalize(vectors.detach().float(), dim=-1)
        self._ids = {word: i for i, word in enumerate(self.words)}

    def id(self, word: str) -> int:
        """Return the id of a word; raise a `ConfigurationError` if it has no vector."""
        if word not in self._ids:
            raise ConfigurationError(f"there is no vector for {word!r}.{nearest(word, self.words)}")
        return self._ids[word]

    def neighbours(self, word: str, count: int) -> list[Neighbour]:
        """Return the words whose vectors are nearest, and their cosines."""
        return self._nearest(self.vectors[self.id(word)], [word], count)

    def analogy(self, a: str, b: str, c: str, count: int) -> list[Neighbour]:
        """Return the words that are to `c` as `b` is to `a`, and their cosines, excluding `a`, `b` and `c`."""
        u, v, w = (self.vectors[self.id(word)] for word in (a, b, c))
        return self._nearest(torch.nn.functional.normalize(v - u + w, dim=-1), [a, b, c], count)

    def _nearest(self, vector: Tensor, without: Sequence[str], count: int) -> list[Neighbour]:
        cosines = self.vectors @ vector  # [V]
        cosines[[self.id(word) for word in without]] = -torch.inf
        best = cosines.topk(min(count, len(self.words) - len(set(without))))
        return [(self.words[i], float(cosine)) for i, cosine in zip(best.indices.tolist(), best.values, strict=True)]


def plane(vectors: Tensor) -> Tensor:
    """Return the first two principal components [N, 2] of vectors [N, D], with signs that make the largest entry of each positive.

    Example:
        >>> plane(torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 1.0]])).shape
        torch.Size([3, 2])
    """
    centred = (vectors - vectors.mean(0)).double()
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    components = torch.nn.functional.pad(u * s, (0, 2))[:, :2]  # [N, 2]
    largest = components.gather(0, components.abs().argmax(0, keepdim=True))
    return components * torch.where(largest < 0, -1.0, 1.0)
