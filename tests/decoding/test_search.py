"""Greedy and beam search on tiny vocabularies, against an enumeration of all sequences."""

from typing import Any

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit import ConfigurationError
from attnkit.decoding import Generation, Hypotheses, beam, stream
from tests.decoding.conftest import EOS, PAD, Table, V


def search(table: Table, rows: list[int] | None = None, **options: Any) -> Hypotheses:
    return beam(table.step, table.start(rows), Generation(**{"end_tokens": [EOS], **options}), pad_id=PAD)


def greedy(table: Table, rows: list[int] | None = None, **options: Any) -> Tensor:
    generation = Generation(**{"end_tokens": [EOS], **options})
    return torch.stack(list(stream(table.step, table.start(rows), generation, pad_id=PAD)), 1)


def without_padding(tokens: Tensor) -> list[int]:
    values = tokens.tolist()
    return values[: values.index(EOS) + 1] if EOS in values else values


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("max_length", [1, 2, 4])
def test_an_exhaustive_beam_finds_the_best_sequence(length_penalty: float, max_length: int, seed: int) -> None:
    table = Table(batch=3)
    tokens = search(table, beam_size=V**max_length, max_length=max_length, length_penalty=length_penalty).tokens[:, 0]
    for row in range(3):
        _, expected = table.ranked(row, max_length=max_length, length_penalty=length_penalty)[0]
        assert tokens[row].tolist() == expected + [PAD] * (tokens.shape[1] - len(expected))


@pytest.mark.parametrize(("min_length", "max_length", "penalty"), [(0, 3, 1.0), (1, 3, 1.0), (2, 2, 1.0), (0, 3, 1.7), (2, 3, 0.6)])
def test_an_exhaustive_beam_ranks_all_sequences(min_length: int, max_length: int, penalty: float, seed: int) -> None:
    table = Table(batch=2)
    lengths = {"min_length": min_length, "max_length": max_length, "length_penalty": 0.7}
    tokens, scores = search(table, beam_size=V**3, repetition_penalty=penalty, **lengths)
    assert tokens.shape[:2] == scores.shape == (2, V**3)
    for row in range(2):
        ranked = table.ranked(row, penalty=penalty, **lengths)
        found = [(score, without_padding(t)) for t, score in zip(tokens[row], scores[row].tolist(), strict=True) if score > float("-inf")]
        assert len(found) == len(ranked)
        assert [t for _, t in found] == [t for _, t in ranked]
        assert [s for s, _ in found] == pytest.approx([s for s, _ in ranked], abs=1e-4)
        assert (tokens[row, len(found) :] == PAD).all()  # missing hypotheses are only padding


def test_scores_have_the_precision_of_the_model(seed: int) -> None:
    model = attnkit.compose(stack="decoder", d_model=8, num_layers=1, num_heads=2, vocab_size=9, eos_id=None).double()
    tokens, scores = model.n_best(prompt := torch.tensor([[3, 4]]), beam_size=2, max_length=3, length_penalty=0.7)
    for hypothesis, score in zip(tokens[0], scores[0], strict=True):
        log_probs = model(torch.cat([prompt[0], hypothesis])[None])[0].log_softmax(-1)[1:-1]
        expected = log_probs.gather(1, hypothesis[:, None]).sum() / 3**0.7
        torch.testing.assert_close(score, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{}, {"end_tokens": []}, {"end_tokens": [EOS, 3]}, {"repetition_penalty": 1.5}, {"min_length": 3}, {"max_length": 1}]
)
def test_a_beam_of_one_is_greedy(options: dict[str, Any], seed: int) -> None:
    table = Table(batch=8)
    options = {"max_length": 6, **options}
    one, other = search(table, **options).tokens[:, 0], greedy(table, **options)
    assert torch.equal(one, other)
    if options.get("end_tokens") == []:
        assert other.shape[1] == 6


@pytest.mark.parametrize(("min_length", "penalty"), [(0, 1.0), (2, 1.0), (0, 1.8), (3, 0.7)])
def test_greedy_takes_the_likeliest_allowed_token_and_pads_after_eos(min_length: int, penalty: float, seed: int) -> None:
    table = Table(batch=6)
    tokens = greedy(table, max_length=5, min_length=min_length, repetition_penalty=penalty)
    for row in range(6):
        expected: list[int] = []
        while len(expected) < 5 and EOS not in expected:
            scores = table.log_probs((row, 1, *expected), forbid_end=len(expected) < min_length, penalty=penalty)
            expected.append(max(range(V), key=scores.__getitem__))
        assert tokens[row].tolist() == expected + [PAD] * (tokens.shape[1] - len(expected))
        assert tokens.shape[1] <= 5


def test_every_end_token_ends_a_row(seed: int) -> None:
    table = Table(batch=40)
    tokens = greedy(table, max_length=8, end_tokens=[EOS, 3])
    lasts = set()
    for row in tokens.tolist():
        ends = [i for i, token in enumerate(row) if token in (EOS, 3)]
        if ends:
            lasts.add(row[ends[0]])
            assert set(row[ends[0] + 1 :]) <= {PAD}
    assert lasts == {EOS, 3}


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.5}, {"min_length": 2}, {"end_tokens": [EOS, 3]}])
def test_the_beams_of_a_row_do_not_depend_on_other_rows(options: dict[str, Any], seed: int) -> None:
    table = Table(batch=4)
    together = search(table, beam_size=3, max_length=5, **options)
    for row in range(4):
        alone = search(table, [row], beam_size=3, max_length=5, **options)
        width = min(alone.tokens.shape[-1], together.tokens.shape[-1])
        assert torch.equal(alone.tokens[0, :, :width], together.tokens[row, :, :width])
        assert (together.tokens[row, :, width:] == PAD).all()
        assert (alone.tokens[0, :, width:] == PAD).all()
        assert torch.equal(alone.scores[0], together.scores[row])


def test_unsupported_options_are_refused() -> None:
    table = Table(batch=1)
    with pytest.raises(ConfigurationError, match="beam_size=2 cannot stream"):
        stream(table.step, table.start(), Generation(beam_size=2), pad_id=PAD)
    with pytest.raises(ConfigurationError, match="beam search does not sample, so it takes no temperature"):
        search(table, temperature=1.0)
    for decode in (search, greedy):
        with pytest.raises(ConfigurationError, match=r"end_tokens are \[2, 4\], but token ids range from 0 to 3"):
            decode(table, end_tokens=[EOS, V])
        with pytest.raises(ConfigurationError, match="every token that may be chosen ends a row, so no row can have min_length=1"):
            decode(table, end_tokens=range(V), min_length=1)
