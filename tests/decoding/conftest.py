"""A model that is a lookup table, so that every sequence can be enumerated."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from attnkit.decoding import Start
from attnkit.state import State

V, PAD, EOS = 4, 0, 2


@dataclass(frozen=True)
class Prefix(State):
    tokens: Tensor  # [B, T], starting with the row number


class Table:
    """Random next-token logits, fixed for each row and prefix; the prompt of each row is the token 1."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.drawn: dict[tuple[int, ...], Tensor] = {}

    def logits(self, prefix: tuple[int, ...]) -> Tensor:
        return self.drawn.setdefault(prefix, 2 * torch.randn(V))

    def log_probs(self, prefix: tuple[int, ...], *, forbid_end: bool = False, penalty: float = 1.0) -> list[float]:
        """The slow definition: penalise tokens that have occurred (the row number is not a token), and forbid the end if asked."""
        logits = self.logits(prefix).tolist()
        for token in set(prefix[1:]):
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        if forbid_end:
            logits[EOS] = float("-inf")
        return torch.tensor(logits).log_softmax(-1).tolist()

    def start(self, rows: list[int] | None = None) -> Start:
        numbers = torch.arange(self.batch)[:, None] if rows is None else torch.tensor(rows)[:, None]
        prompt = torch.ones_like(numbers)
        return Start(prompt, Prefix(numbers), prompt)

    def step(self, tokens: Tensor, state: Prefix) -> tuple[Tensor, Prefix]:
        seen = torch.cat([state.tokens, tokens], 1)
        return torch.stack([self.logits(tuple(row)) for row in seen.tolist()]), Prefix(seen)

    def ranked(
        self, row: int, *, max_length: int, length_penalty: float, min_length: int = 0, penalty: float = 1.0
    ) -> list[tuple[float, list[int]]]:
        """Return the score and tokens of every sequence that ends or has `max_length` tokens, best first."""
        scored = []
        for length in range(min_length + 1, max_length + 1) if min_length < max_length else [max_length]:
            for sequence in itertools.product(range(V), repeat=length):
                if EOS in sequence[:-1] or (length < max_length and sequence[-1] != EOS):
                    continue
                total = sum(
                    self.log_probs((row, 1, *sequence[:i]), forbid_end=i < min_length, penalty=penalty)[token]
                    for i, token in enumerate(sequence)
                )
                scored.append((total / length**length_penalty, list(sequence)))
        return sorted((s for s in scored if s[0] > float("-inf")), reverse=True)
