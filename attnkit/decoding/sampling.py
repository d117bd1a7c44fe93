# https://arxiv.org/abs/1904.09751
"""Decoding token by token, greedy or with sampling."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnkit.decoding.base import Start, Step
from attnkit.decoding.generation import Generation
from attnkit.decoding.graph import Recording
from attnkit.decoding.logits import forbid, keep_top_k, keep_top_p
from attnkit.decoding.rules import Rules, end_tokens
from attnkit.registry import ConfigurationError
from attnkit.state import State


def stream(step: Step, start: Start, generation: Generation, *, pad_id: int, excluded: Sequence[int] = ()) -> Iterator[Tensor]:
    r"""Choose each token in turn: the most probable one (greedy) or, with a temperature, a sampled one.

    Equation:
        $$y_t = \operatorname{argmax}_y p(y \mid y_{<t}) \qquad \text{or} \qquad y_t \sim \mathrm{softmax}(z_t / \tau)$$

    Args:
        step: The model.
        start: The first tokens, and the state before them.
        generation: The options; if `end_tokens` is None, no row ends before `max_length`.
        pad_id: The token that follows the end of a row.
        excluded: Tokens that are never chosen, however high the temperature.

    Returns:
        An iterator over the new tokens [B] of each step, including end tokens, until every row has ended, for at most `max_length` steps.

    Raises:
        ConfigurationError: The options request beam search or rank its outputs, or (raised by the iterator) an end token is not in the
            vocabulary.

    Example:
        >>> step = lambda tokens, state: (torch.nn.functional.one_hot(tokens[:, -1] + 1, 5).float(), state)  # counts
        >>> [token.tolist() for token in stream(step, Start(torch.tensor([[1]])), Generation(end_tokens=[4]), pad_id=0)]
        [[2], [3], [4]]
    """
    if generation.beam_size > 1:
        raise ConfigurationError(
            f"beam_size={generation.beam_size} cannot stream, because beam search knows its tokens only at the end; remove it"
        )
    if generation.length_penalty != 1:
        raise ConfigurationError("length_penalty ranks the outputs of a beam search, so it would have no effect without beams; remove it")
    return _tokens(step, start, generation, pad_id, excluded)


def _tokens(step: Step, start: Start, generation: Generation, pad_id: int, excluded: Sequence[int]) -> Iterator[Tensor]:
    tokens, state = start.tokens, start.state
    precision = torch.float32 if tokens.device.type == "mps" else torch.float64
    uniforms = _uniforms(generation, len(tokens)).to(tokens.device, precision)  # [B, max_length], or [B, 0] without sampling
    ends = end_tokens(generation, tokens.device)
    # their logits are so low that they need this only if those are divided; copied once, because each copy waits for a GPU
    is_raised = generation.samples or generation.repetition_penalty < 1
    never = torch.tensor(excluded, device=tokens.device) if excluded and is_raised else None
    ended = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    rules: Rules | None = None
    left, padding = torch.arange(len(tokens), device=tokens.device), tokens.new_full((len(tokens),), pad_id, dtype=torch.long)
    for length in range(generation.max_length):
        logits, state = step(tokens, state)
        rules = Rules.begin(generation, start.prompt, logits, excluded) if rules is None else rules
        logits = rules.apply(logits)
        logits = logits if never is None else forbid(logits, never)
        # [B]; in bf16, argmax takes four times as long as max
        token = _sample(logits, generation, uniforms[:, length]) if generation.samples else logits.max(-1).indices
        if not len(ends):  # no row can end, so the GPU need not be synchronised
            rules, tokens = rules.after(token), token[:, None]
            yield token
            continue
        token = token.masked_fill(ended, pad_id)
        rules, ended, tokens = rules.after(token), ended | (token[..., None] == ends).any(-1), token[:, None]
        yield token if len(left) == len(padding) else padding.index_copy(0, left, token)
        unfinished = (~ended).nonzero()[:, 0]
        if len(unfinished) == 0:
            return
        selects = isinstance(state, State) or (isinstance(state, Recording) and not tokens.is_cuda)
        if 2 * len(unfinished) <= len(left) and selects:  # drop the rows that have ended, once they are half of all
            left, ended, tokens, uniforms = left[unfinished], ended[unfinished], tokens[unfinished], uniforms[unfinished]
            state, rules = state.select(unfinished), rules.select(unfinished)


def _sample(logits: Tensor, generation: Generation, uniform: Tensor) -> Tensor:
    """Return the first token [N] at which the cumulative probability exceeds `uniform` [N], which is in [0, 1)."""
    assert generation.temperature is not None
    logits = logits.to(uniform.dtype)
    logits = (logits - logits.amax(-1, keepdim=True)) / generation.temperature  # at most 0, because near 0 a temperature would give inf
    logits = logits if generation.top_k is None else keep_top_k(logits, generation.top_k)
    logits = logits if generation.top_p is None else keep_top_p(logits, generation.top_p)
    cumulative = logits.softmax(-1).cumsum(-1)
    total = cumulative[:, -1:]
    below = (cumulative <= uniform[:, None] * total).sum(-1)
    return below.minimum((cumulative < total).sum(-1))  # in case uniform * total rounds up to total


def _uniforms(generation: Generation, rows: int) -> Tensor:
    """Return uniform random numbers, one per row and step, drawn on the CPU for every device; row i has the seed `seed` + i."""
    if not generation.samples:
        return torch.empty(rows, 0)
    seed = int(torch.randint(2**62, ())) if generation.seed is None else generation.seed
    streams = [torch.Generator().manual_seed(seed + row) for row in range(rows)]
    return torch.stack([torch.rand(generation.max_length, generator=stream, dtype=torch.float64) for stream in streams])
