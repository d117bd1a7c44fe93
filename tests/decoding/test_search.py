"""Greedy and beam search on tiny vocabularies, against the enumeration of every sequence."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from attnkit.decoding import beam, greedy
from attnkit.state import State

V, PAD, EOS = 4, 0, 2


@dataclass(frozen=True)
class Prefix(State):
    tokens: Tensor  # [B, T], the row's number first


class Table:
    """A model whose next-token log-probabilities are drawn once for every row and prefix."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.drawn: dict[tuple[int, ...], Tensor] = {}

    def log_probs(self, prefix: tuple[int, ...]) -> Tensor:
        return self.drawn.setdefault(prefix, (2 * torch.randn(V)).log_softmax(-1))

    def start(self) -> Prefix:
        return Prefix(torch.arange(self.batch)[:, None])

    def step(self, tokens: Tensor, state: Prefix | None) -> tuple[Tensor, Prefix]:
        assert state is not None
        seen = torch.cat([state.tokens, tokens], 1)
        return torch.stack([self.log_probs(tuple(row)) for row in seen.tolist()]), Prefix(seen)

    def best(self, row: int, *, max_length: int, length_penalty: float) -> tuple[float, list[int]]:
        """Return score and tokens of the best sequence that ends, or is `max_length` long."""
        scored = []
        for length in range(1, max_length + 1):
            for sequence in itertools.product(range(V), repeat=length):
                if EOS in sequence[:-1] or (length < max_length and sequence[-1] != EOS):
                    continue
                total = sum(float(self.log_probs((row, 1, *sequence[:i]))[token]) for i, token in enumerate(sequence))
                scored.append((total / length**length_penalty, list(sequence)))
        return max(scored)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("max_length", [1, 2, 4])
def test_a_beam_that_keeps_all_finds_the_best_of_all(length_penalty: float, max_length: int, seed: int) -> None:
    table = Table(batch=3)
    tokens = beam(
        table.step, torch.ones(3, 1, dtype=torch.long), table.start(),
        beam_size=V**max_length, max_length=max_length, eos_id=EOS, pad_id=PAD, length_penalty=length_penalty,
    )  # fmt: skip
    for row in range(3):
        _, expected = table.best(row, max_length=max_length, length_penalty=length_penalty)
        assert tokens[row].tolist() == expected + [PAD] * (tokens.shape[1] - len(expected))


@pytest.mark.parametrize("eos_id", [EOS, None])
def test_a_beam_of_one_is_greedy(eos_id: int | None, seed: int) -> None:
    table, start = Table(batch=8), torch.ones(8, 1, dtype=torch.long)
    one = beam(table.step, start, table.start(), beam_size=1, max_length=6, eos_id=eos_id, pad_id=PAD)
    other = greedy(table.step, start, table.start(), max_length=6, eos_id=eos_id, pad_id=PAD)
    assert torch.equal(one, other)
    if eos_id is None:
        assert other.shape[1] == 6


def test_greedy_takes_the_most_probable_token_and_pads_after_the_end(seed: int) -> None:
    table = Table(batch=6)
    tokens = greedy(table.step, torch.ones(6, 1, dtype=torch.long), table.start(), max_length=5, eos_id=EOS, pad_id=PAD)
    for row in range(6):
        prefix, expected = (row, 1), []
        while len(expected) < 5 and EOS not in expected:
            expected.append(int(table.log_probs(prefix).argmax()))
            prefix = (*prefix, expected[-1])
        assert tokens[row].tolist() == expected + [PAD] * (tokens.shape[1] - len(expected))
        assert tokens.shape[1] <= 5


def test_a_wider_beam_of_a_row_does_not_see_the_other_rows(seed: int) -> None:
    table, start = Table(batch=4), torch.ones(4, 1, dtype=torch.long)
    together = beam(table.step, start, table.start(), beam_size=3, max_length=5, eos_id=EOS, pad_id=PAD)
    for row in range(4):
        alone = beam(table.step, start[:1], Prefix(torch.tensor([[row]])), beam_size=3, max_length=5, eos_id=EOS, pad_id=PAD)[0]
        width = min(len(alone), together.shape[1])
        assert torch.equal(alone[:width], together[row, :width])
        assert (together[row, width:] == PAD).all()
        assert (alone[width:] == PAD).all()
