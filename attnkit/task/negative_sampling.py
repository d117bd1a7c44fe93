# https://arxiv.org/abs/1310.4546
"""Words, the words around them, and noise: what word vectors are trained on."""

from typing import NamedTuple

import torch
from torch import Tensor

from attnkit import draws
from attnkit.tokenizer import Tokenizer


class Neighbourhoods(NamedTuple):
    """The words of a batch and those around them.

    Attributes:
        centres: [B, T] int64; padding where there is none.
        contexts: [B, T, 2W] int64: the words around each.
        used: [B, T, 2W] bool: whether that is a pair.
    """

    centres: Tensor
    contexts: Tensor
    used: Tensor


def neighbourhoods(tokens: Tensor, *, window: int, keep: Tensor, keys: Tensor) -> Neighbourhoods:
    """Return the words around each word of a document.

    Frequent words are dropped first, which brings the others nearer to each other. Then the reach of each word is drawn from 1 to `window`,
    so that near words count more.

    Paper: Mikolov et al. 2013, section 2.3, https://arxiv.org/abs/1310.4546

    Args:
        tokens: [B, T] int64; bos at the start of a document. Special tokens are not words.
        window: The largest reach W.
        keep: [V] float64, the probability of keeping a word.
        keys: [B] int64, the key of each row (`attnkit.draws`).

    Example:
        >>> tokens = torch.tensor([[1, 7, 8, 1, 9]])
        >>> found = neighbourhoods(tokens, window=1, keep=torch.ones(10, dtype=torch.float64), keys=torch.tensor([0]))
        >>> found.centres.tolist(), found.contexts[found.used].tolist()
        ([[7, 8, 9, 0, 0]], [8, 7])
    """
    width = tokens.shape[1]
    dropping, reaching = (draws.uniform(keys, draws.site(f"word_vectors.{what}"), width) for what in ("drop", "reach"))
    kept = (tokens >= len(Tokenizer.special_tokens)) & (dropping < keep[tokens])  # [B, T]
    order = (~kept).int().argsort(dim=1, stable=True)
    documents = (tokens == Tokenizer.bos_id).cumsum(1).gather(1, order)
    kept = kept.gather(1, order)
    centres = tokens.gather(1, order).where(kept, Tokenizer.pad_id)
    offsets = torch.tensor([o for o in range(-window, window + 1) if o != 0], device=tokens.device)  # [2W]
    places = torch.arange(width, device=tokens.device)[:, None] + offsets  # [T, 2W]
    inside = (places >= 0) & (places < width)
    places = places.clamp(0, width - 1)
    reach = 1 + (reaching * window).long()  # [B, T]
    used = inside & (offsets.abs() <= reach[..., None]) & (documents[:, places] == documents[..., None])
    return Neighbourhoods(centres, centres[:, places], used & kept[:, places] & kept[..., None])


def draw_noise(cumulative: Tensor, shape: torch.Size, count: int, keys: Tensor) -> Tensor:
    """Return noise words [B, T, count], drawn in proportion to the increments of `cumulative` [V] (float64, ending at 1)."""
    chances = draws.uniform(keys, draws.site("word_vectors.noise"), shape[1] * count).view(*shape, count)
    return torch.searchsorted(cumulative, chances, right=True).clamp(max=len(cumulative) - 1)
