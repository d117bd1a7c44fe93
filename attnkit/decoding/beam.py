# https://arxiv.org/abs/1609.08144
"""Beam search."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnkit.decoding.base import Start, Step
from attnkit.decoding.generation import Generation
from attnkit.decoding.logits import forbid
from attnkit.decoding.rules import Rules, end_tokens
from attnkit.registry import ConfigurationError


class Hypotheses(NamedTuple):
    """The results of a beam search, best first.

    Attributes:
        tokens: [B, N, L] int64, end tokens included, then padding.
        scores: [B, N], the log-probability in nats divided by length ** length_penalty; -inf if there is no hypothesis. fp32, or float64
            for a float64 model.
    """

    tokens: Tensor
    scores: Tensor


def beam(step: Step, start: Start, generation: Generation, *, pad_id: int, excluded: Sequence[int] = ()) -> Hypotheses:
    r"""Keep the `beam_size` best hypotheses of each row; finished ones remain as long as their scores are among the best.

    Probabilities include the effects of the repetition penalty and the minimum length. A beam size of one is greedy decoding with a score.

    Equation:
        $$\mathrm{score}(y) = \frac{\log p(y)}{|y|^\alpha}$$

    Args:
        step: The model.
        start: The first tokens, and the state before them.
        generation: The options; if `end_tokens` is None, no hypothesis ends before `max_length`.
        pad_id: The token that follows the end of a hypothesis.
        excluded: Tokens that no hypothesis may contain, however few others there are.

    Returns:
        The hypotheses of each row, N = beam_size, with at most `max_length` tokens each.

    Raises:
        ConfigurationError: The options request sampling, or an end token is not in the vocabulary.

    Example:
        >>> from attnkit.state import State
        >>> logits = torch.tensor([0.5, 0.3, 0.2]).log()  # the same at each step
        >>> step = lambda tokens, state: (logits.expand(len(tokens), -1), state)
        >>> generation = Generation(max_length=2, beam_size=2, length_penalty=0.0, end_tokens=[1])
        >>> found = beam(step, Start(torch.tensor([[2]]), State()), generation, pad_id=2)
        >>> found.tokens, found.scores.exp()
        (tensor([[[1, 2],
                 [0, 0]]]), tensor([[0.3000, 0.2500]]))
    """
    if generation.samples:
        raise ConfigurationError("beam search does not sample, so it takes no temperature; remove it")
    beam_size, length_penalty = generation.beam_size, generation.length_penalty
    batch, device = start.tokens.shape[0], start.tokens.device
    rows = torch.arange(batch, device=device)[:, None] * beam_size  # first beam of each row
    logits, state = step(start.tokens, start.state)
    rules = Rules.begin(generation, start.prompt, logits, excluded)
    vocab, dtype = logits.shape[-1], torch.promote_types(logits.dtype, torch.float32)
    never = torch.tensor(excluded, device=device) if excluded else None

    def log_probabilities(logits: Tensor) -> Tensor:
        chosen = rules.apply(logits).to(dtype)
        return (chosen if never is None else forbid(chosen, never)).log_softmax(-1)

    log_probs = log_probabilities(logits)[:, None].expand(-1, beam_size, -1)  # [B, N, V]
    each = torch.arange(batch, device=device)[:, None].expand(-1, beam_size)
    state, rules = state.branch(each), rules.branch(each)
    total = torch.full((batch, beam_size), float("-inf"), dtype=dtype, device=device)
    total[:, 0] = 0.0  # before the first token, all beams are equal, so only one counts
    length = torch.zeros(batch, beam_size, dtype=dtype, device=device)
    ended = torch.zeros(batch, beam_size, dtype=torch.bool, device=device)
    output = torch.empty(batch, beam_size, 0, dtype=torch.long, device=device)
    ends = end_tokens(generation, device)
    only_pad = torch.full((vocab,), float("-inf"), dtype=dtype, device=device)
    only_pad[pad_id] = 0.0
    while True:
        extended = total[..., None] + torch.where(ended[..., None], only_pad, log_probs)  # [B, N, V]
        new_length = (length + ~ended)[..., None]
        ranked = (extended / new_length**length_penalty).flatten(1)  # [B, N V]
        scores, choice = ranked.topk(beam_size, dim=-1)  # [B, N], best first
        parent, token = choice // vocab, choice % vocab
        total = extended.flatten(1).gather(1, choice)
        length = new_length.squeeze(-1).gather(1, parent)
        output = torch.cat([output.gather(1, parent[..., None].expand_as(output)), token[..., None]], -1)
        ended = ended.gather(1, parent) | (token[..., None] == ends).any(-1)
        if output.shape[-1] == generation.max_length or bool(ended.all()):
            return Hypotheses(output.masked_fill(scores.isneginf()[..., None], pad_id), scores)
        parents = rows + parent
        rules = rules.branch(parents).after(token.view(-1))
        logits, state = step(token.view(-1, 1), state.branch(parents))
        log_probs = log_probabilities(logits).view(batch, beam_size, vocab)
