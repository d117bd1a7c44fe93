# https://arxiv.org/abs/1810.04805
"""Masking: chooses tokens of a text, and hides them from a masked language model."""

from typing import NamedTuple

import torch
from torch import Tensor

from attnkit import draws

MASKED, REPLACED = 0.8, 0.1  # fractions of the chosen tokens; the rest is unchanged


class Masked(NamedTuple):
    """A batch with hidden tokens.

    Attributes:
        tokens: [B, T] int64, the input of the model.
        chosen: [B, T] bool, the tokens to predict; some of them are still in `tokens`.
    """

    tokens: Tensor
    chosen: Tensor


def mask_tokens(
    tokens: Tensor,
    *,
    probability: float,
    mask_id: int,
    first_id: int,
    vocab_size: int,
    begins_word: Tensor | None,
    keys: Tensor,
) -> Masked:
    """Choose tokens, and hide most of them: 80 % become `<mask>`, 10 % a random token, 10 % stay as they are.

    Each token, or whole word, is chosen with the same probability, independently of the others. (BERT chooses a fixed number of each text.)
    The fate of a token is drawn for each token, also within a whole word, as in BERT's code.

    Paper: Devlin et al. 2019, section 3.1, https://arxiv.org/abs/1810.04805

    Args:
        tokens: [B, T] int64.
        probability: Probability that a token, or a word, is chosen.
        mask_id: The id of `<mask>`.
        first_id: Ids below this are never chosen and never replace another: special, unknown and extra tokens.
        vocab_size: Ids V; random tokens are from `first_id` to V - 1, all equally likely.
        begins_word: [V] bool, the ids that begin a word, for whole words; None: single tokens.
        keys: [B] int64, a random key for each row (`attnkit.draws`): the result for a row depends only on its key and its tokens, not
            on padding or other rows.

    Example:
        >>> tokens = torch.tensor([[1, 7, 8, 9, 7, 2, 0]])
        >>> ids = {"mask_id": 4, "first_id": 5, "vocab_size": 10, "begins_word": None}
        >>> masked = mask_tokens(tokens, probability=0.5, **ids, keys=torch.tensor([3]))
        >>> masked.chosen
        tensor([[False, False, False, False,  True, False, False]])
        >>> masked.tokens
        tensor([[1, 7, 8, 9, 4, 2, 0]])
    """
    chances, fates, others = (draws.uniform(keys, draws.site(f"masking.{what}"), tokens.shape[1]) for what in ("choice", "fate", "other"))
    others = first_id + (others * (vocab_size - first_id)).long()  # [B, T], as all of these
    ordinary = tokens >= first_id
    if begins_word is not None:
        follows = torch.nn.functional.pad(ordinary[:, :-1], (1, 0))  # [B, T]
        word = (begins_word[tokens] | ~follows).cumsum(1) - 1  # [B, T], the number of the word in its row
        chances = chances.gather(1, word)  # one draw for all tokens of a word
    chosen = ordinary & (chances < probability)
    hidden = torch.where(fates < MASKED, mask_id, torch.where(fates < MASKED + REPLACED, others, tokens))
    return Masked(torch.where(chosen, hidden, tokens), chosen)
