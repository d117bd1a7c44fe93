"""The options of generation that depend on the tokens so far."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from attnkit.decoding.generation import Generation
from attnkit.decoding.logits import forbid, penalise_repetition
from attnkit.registry import ConfigurationError
from attnkit.state import State


@dataclass(frozen=True)
class Rules(State):
    """The repetition penalty and the minimum length, given the tokens so far. Immutable, like all states."""

    generation: Generation  # the options
    seen: Tensor | None  # [N, V] bool, the tokens that each row contains, or None without a repetition penalty
    length: int = 0  # new tokens so far

    @classmethod
    def begin(cls, generation: Generation, prompt: Tensor | None, logits: Tensor, excluded: Sequence[int] = ()) -> Self:
        """Return the rules for the first new token, with `logits` [N, V] after the `prompt` [N, P]; raise if they cannot be followed.

        The tokens `excluded` are never chosen.
        """
        vocab = logits.shape[-1]
        if generation.end_tokens and max(generation.end_tokens) >= vocab:
            raise ConfigurationError(f"end_tokens are {list(generation.end_tokens)}, but token ids range from 0 to {vocab - 1}")
        if generation.min_length and len({*(generation.end_tokens or ()), *excluded}) == vocab:
            raise ConfigurationError(f"every token that may be chosen ends a row, so no row can have min_length={generation.min_length}")
        if generation.repetition_penalty == 1.0:
            return cls(generation, None)
        seen = torch.zeros_like(logits, dtype=torch.bool)
        return cls(generation, seen if prompt is None else seen.scatter(-1, prompt, True))

    def apply(self, logits: Tensor) -> Tensor:
        """Return the logits [N, V] of the next token after applying the rules."""
        if self.seen is not None:
            logits = penalise_repetition(logits, self.seen, self.generation.repetition_penalty)
        if self.length < self.generation.min_length and self.generation.end_tokens:
            logits = forbid(logits, self.generation.end_tokens)
        return logits

    def after(self, token: Tensor) -> Self:
        """Return the rules after one more token [N] int64."""
        seen = None if self.seen is None else self.seen.scatter(-1, token[:, None], True)
        return replace(self, seen=seen, length=self.length + 1)


def end_tokens(generation: Generation, device: torch.device) -> Tensor:
    """Return the tokens that end a row, [E] int64."""
    return torch.tensor(generation.end_tokens or [], dtype=torch.long, device=device)
