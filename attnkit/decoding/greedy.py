"""Greedy decoding."""

import torch
from torch import Tensor

from attnkit.decoding.base import Step
from attnkit.state import State


def greedy(step: Step, tokens: Tensor, state: State | None, *, max_length: int, eos_id: int | None, pad_id: int) -> Tensor:
    r"""Take the most probable token, again and again.

    Equation:
        $$y_t = \arg\max_y p(y \mid y_{<t})$$

    Args:
        step: The model.
        tokens: What the model reads first, [B, T].
        state: What the model knows before `tokens`.
        max_length: New tokens at the most.
        eos_id: Ends a row, or None: rows never end before `max_length`.
        pad_id: Fills rows that ended.

    Returns:
        The new tokens [B, L], L <= max_length, the end token included.
    """
    ended = torch.zeros(tokens.shape[0], dtype=torch.bool, device=tokens.device)
    new: list[Tensor] = []
    while len(new) < max_length and not ended.all():
        logits, state = step(tokens, state)
        token = logits.argmax(-1).masked_fill(ended, pad_id)  # [B]
        new.append(token)
        if eos_id is not None:
            ended = ended | (token == eos_id)
        tokens = token[:, None]
    return torch.stack(new, 1)
