"""Samples have the requested distribution, and each row has its own random stream."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnkit.decoding import Generation, Start, stream
from attnkit.decoding.logits import keep_top_k, keep_top_p, penalise_repetition
from attnkit.decoding.sampling import _sample
from tests.decoding.conftest import EOS, PAD, Table

DRAWS = 20_000


def assert_drawn_from(tokens: Tensor, probabilities: Tensor) -> None:
    """Test the counts by chi-square, without cells whose expected count is below 10, which are too far from normal.

    With d degrees of freedom, the tail beyond d + 2 sqrt(d x) + 2 x is below exp(-x) (Laurent and Massart 2000); here x = 14, 8e-7.
    """
    counts = torch.bincount(tokens, minlength=len(probabilities)).double()
    assert (counts[probabilities == 0] == 0).all()
    expected = len(tokens) * probabilities.double()
    kept = expected >= 10
    degrees = int(kept.sum())
    chi_square = ((counts - expected)[kept].square() / expected[kept]).sum().item()
    assert chi_square <= degrees + 2 * math.sqrt(14 * degrees) + 28, (chi_square, degrees)


def drawn(logits: Tensor, seed: int, **options: Any) -> Tensor:
    """Sample the first token of `DRAWS` rows with the same logits [V], each row from its own random stream."""
    rows = torch.ones(DRAWS, 1, dtype=torch.long)
    generation = Generation(max_length=1, seed=seed, **options)
    return next(stream(lambda tokens, state: (logits.expand(len(tokens), -1), state), Start(rows, None, rows), generation, pad_id=PAD))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_sampled_from_the_softmax(temperature: float, seed: int) -> None:
    logits = torch.randn(12)
    assert_drawn_from(drawn(logits, seed, temperature=temperature), (logits / temperature).softmax(-1))


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.7}, {"top_k": 6, "top_p": 0.8}, {"repetition_penalty": 2.0}])
def test_restricting_options_sample_from_the_remaining_tokens(options: dict[str, Any], seed: int) -> None:
    logits = torch.randn(1, 12, dtype=torch.float64)
    left = logits
    if "repetition_penalty" in options:  # the prompt is the token 1
        left = penalise_repetition(left, torch.arange(12)[None] == 1, options["repetition_penalty"])
    left = left / 0.8
    left = keep_top_k(left, options["top_k"]) if "top_k" in options else left
    left = keep_top_p(left, options["top_p"]) if "top_p" in options else left
    assert_drawn_from(drawn(logits[0], seed, temperature=0.8, **options), left[0].softmax(-1))


def test_later_tokens_are_also_sampled_from_the_softmax(seed: int) -> None:
    logits = torch.randn(6)
    rows = torch.ones(50, 1, dtype=torch.long)
    generation = Generation(max_length=400, temperature=1.0, seed=seed)
    tokens = torch.stack(list(stream(lambda t, s: (logits.expand(len(t), -1), s), Start(rows), generation, pad_id=PAD)), 1)
    assert_drawn_from(tokens.flatten(), logits.softmax(-1))
    pairs = (tokens[:, :-1] * 6 + tokens[:, 1:])[:, ::2].flatten()  # neighbours are independent
    assert_drawn_from(pairs, (logits.softmax(-1)[:, None] * logits.softmax(-1)).flatten())
    beside = (tokens[:-1] * 6 + tokens[1:])[::2].flatten()  # and rows with neighbouring seeds
    assert_drawn_from(beside, (logits.softmax(-1)[:, None] * logits.softmax(-1)).flatten())


def test_impossible_tokens_are_never_sampled_even_at_the_ends_of_the_unit_interval() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0, -math.inf]])
    for uniform, expected in ((0.0, 1), (1 - 2**-53, 3), (0.268, 1), (0.27, 3)):  # 1 / (1 + e) = 0.2689
        assert _sample(logits, Generation(temperature=1.0), torch.tensor([uniform], dtype=torch.float64)).tolist() == [expected]


@pytest.mark.parametrize("temperature", [1e-3, 1e-300, 5e-324])
def test_a_temperature_near_zero_takes_the_most_probable_token(temperature: float) -> None:
    logits = torch.tensor([[1.0, 3e8, 2.0], [-3.0, -9.0, -1.0]])
    uniform = torch.tensor([0.0, 0.9], dtype=torch.float64)
    assert _sample(logits, Generation(temperature=temperature, top_p=0.9), uniform).tolist() == [1, 2]


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.3}, {"top_k": 2}, {"top_p": 0.6}, {"repetition_penalty": 1.4}, {"min_length": 3}, {"end_tokens": [3]}]
)
def test_sampling_a_row_depends_on_its_seed_and_not_on_the_batch(options: dict[str, Any], seed: int) -> None:
    table = Table(batch=5)

    def sample(rows: list[int], seed: int) -> Tensor:
        generation = Generation(**{"max_length": 7, "temperature": 1.0, "end_tokens": [EOS], **options, "seed": seed})
        return torch.stack(list(stream(table.step, table.start(rows), generation, pad_id=PAD)), 1)

    together = sample(list(range(5)), seed)
    assert torch.equal(together, sample(list(range(5)), seed))
    for row in range(5):
        alone = sample([row], seed + row)[0]
        assert torch.equal(alone, together[row, : len(alone)])
        assert (together[row, len(alone) :] == PAD).all()


def test_seeds_differ_and_the_maximum_length_does_not_change_tokens(seed: int) -> None:
    logits = torch.zeros(50)

    def sample(seed: int | None, max_length: int) -> list[int]:
        generation = Generation(max_length=max_length, temperature=1.0, seed=seed)
        start = Start(torch.ones(1, 1, dtype=torch.long))
        return [int(t) for t in stream(lambda t, s: (logits.expand(len(t), -1), s), start, generation, pad_id=PAD)]

    assert sample(seed, 30)[:7] == sample(seed, 7)
    assert sample(seed, 30) != sample(seed + 1, 30)
    torch.manual_seed(seed)
    first = sample(None, 30)
    assert sample(None, 30) != first
    torch.manual_seed(seed)
    assert sample(None, 30) == first
