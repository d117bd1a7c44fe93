# https://arxiv.org/abs/1609.08144
"""Beam search."""

import torch
from torch import Tensor

from attnkit.decoding.base import Step
from attnkit.state import State


def beam(
    step: Step,
    tokens: Tensor,
    state: State | None,
    *,
    beam_size: int,
    max_length: int,
    eos_id: int | None,
    pad_id: int,
    length_penalty: float = 1.0,
) -> Tensor:
    r"""Keep the `beam_size` best continuations of each row; an ended one keeps its place as long as its score does.

    Equation:
        $$\mathrm{score}(y) = \frac{\log p(y)}{|y|^\alpha}$$

    Args:
        step: The model.
        tokens: What the model reads first, [B, T].
        state: What the model knows before `tokens`.
        beam_size: Continuations kept for each row.
        max_length: New tokens at the most.
        eos_id: Ends a continuation, or None: none ends before `max_length`.
        pad_id: Fills continuations that ended.
        length_penalty: Alpha; 0 favours short outputs, 1 (default) compares the log-probability per token.

    Returns:
        The best continuation of each row [B, L], L <= max_length, the end token included.
    """
    batch, device = tokens.shape[0], tokens.device
    rows = torch.arange(batch, device=device)[:, None] * beam_size  # first beam of each row
    logits, state = step(tokens, state)
    assert state is not None
    state = state.select(torch.arange(batch, device=device).repeat_interleave(beam_size))
    vocab = logits.shape[-1]
    log_probs = logits.float().log_softmax(-1)[:, None].expand(-1, beam_size, -1)  # [B, N, V]
    total = torch.full((batch, beam_size), float("-inf"), device=device)
    total[:, 0] = 0.0  # all beams are equal before the first token: start with one
    length = torch.zeros(batch, beam_size, device=device)
    ended = torch.zeros(batch, beam_size, dtype=torch.bool, device=device)
    output = torch.empty(batch, beam_size, 0, dtype=torch.long, device=device)
    while True:
        only_pad = torch.full((vocab,), float("-inf"), device=device)
        only_pad[pad_id] = 0.0
        extended = total[..., None] + torch.where(ended[..., None], only_pad, log_probs)  # [B, N, V]
        new_length = (length + ~ended)[..., None]
        ranked = (extended / new_length**length_penalty).flatten(1)  # [B, N V]
        choice = ranked.topk(beam_size, dim=-1).indices  # [B, N]
        parent, token = choice // vocab, choice % vocab
        total = extended.flatten(1).gather(1, choice)
        length = new_length.squeeze(-1).gather(1, parent)
        ended = ended.gather(1, parent)
        output = torch.cat([output.gather(1, parent[..., None].expand_as(output)), token[..., None]], -1)
        if eos_id is not None:
            ended = ended | (token == eos_id)
        if output.shape[-1] == max_length or bool(ended.all()):
            best = (total / length**length_penalty).argmax(-1)  # [B]
            return output[torch.arange(batch, device=device), best]
        logits, state = step(token.view(-1, 1), state.select((rows + parent).view(-1)))
        log_probs = logits.float().log_softmax(-1).view(batch, beam_size, vocab)
