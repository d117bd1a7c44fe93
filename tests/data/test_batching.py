import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from attnkit import ConfigurationError
from attnkit.data import Examples, Sequences, TokenBatchSampler
from attnkit.data.loading import Share
from attnkit.strategy.sharing import DataShare


def random_sequences(rng: np.random.Generator, count: int, longest: int = 30) -> list[list[int]]:
    return [rng.integers(4, 50, size=rng.integers(1, longest + 1)).tolist() for _ in range(count)]


def random_examples(rng: np.random.Generator, count: int, longest: int = 30) -> Examples:
    return Examples(src=Sequences(random_sequences(rng, count, longest)), tgt=Sequences(random_sequences(rng, count, longest)), texts=None)


def epochs(examples: Examples, count: int = 3, **options: int | str) -> Iterator[list[list[int]]]:
    sampler = TokenBatchSampler(examples, **options)  # type: ignore[arg-type]
    for epoch in range(count):
        sampler.set_epoch(epoch)
        yield [share.rows.tolist() for share in sampler if not share.is_filler]


def padded_size(examples: Examples, batch: list[int]) -> int:
    assert examples.tgt is not None
    return int(examples.src.lengths[batch].max() + examples.tgt.lengths[batch].max()) * len(batch)


def test_sequences_are_padded_to_the_longest_of_the_batch(rng: np.random.Generator) -> None:
    ids = random_sequences(rng, 40)
    chosen = rng.integers(0, 40, size=7).tolist()
    expected = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids[i]) for i in chosen], batch_first=True)
    padded = Sequences(ids).padded(chosen)
    assert padded.dtype == torch.int64
    assert torch.equal(padded, expected)


def test_a_training_batch_contains_only_tensors(rng: np.random.Generator) -> None:
    assert set(random_examples(rng, 5)[Share(batch=[3, 1])]) == {"example", "src", "tgt"}


@pytest.mark.parametrize("order", ["shuffled", "fixed", "given"])
@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_every_example_appears_once_per_epoch_within_the_budget(order: str, processes: int, rng: np.random.Generator) -> None:
    examples = random_examples(rng, int(rng.integers(100, 3000)))
    shares = [epochs(examples, batch_tokens=300, order=order, share=DataShare(processes, rank)) for rank in range(processes)]
    for parts in zip(*shares, strict=True):
        assert sorted(i for part in parts for batch in part for i in batch) == list(range(len(examples)))
    for share in TokenBatchSampler(examples, batch_tokens=300, order=order, share=DataShare(processes, 0)):  # type: ignore[arg-type]
        assert padded_size(examples, share.batch.tolist()) <= 300


LITERALS = {  # as one process had them before batches were shared
    "shuffled": [[[8, 7, 13, 10, 9], [4, 2, 11, 5, 0], [12], [1, 6, 3]], [[1, 6, 3], [4, 2, 11, 5, 0], [12], [8, 7, 13, 10, 9]]],
    "fixed": [[[8, 7, 13, 10, 9], [4, 2, 11, 5, 0], [12], [1, 6, 3]]] * 2,
    "given": [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13]]] * 2,
}


@pytest.mark.parametrize("order", LITERALS)
def test_batches_do_not_depend_on_the_number_of_processes(order: str) -> None:
    numbers = np.random.default_rng(7)
    sides = [Sequences([[4] * n for n in numbers.integers(1, 9, size=14)]) for _ in range(2)]
    examples = Examples(src=sides[0], tgt=sides[1], texts=None)
    assert list(epochs(examples, 2, batch_tokens=60, order=order, seed=3)) == LITERALS[order]
    for processes in (2, 3, 7):
        samplers = [
            TokenBatchSampler(examples, batch_tokens=60, order=order, seed=3, share=DataShare(processes, r)) for r in range(processes)
        ]  # type: ignore[arg-type]
        for sampler in samplers:
            sampler.set_epoch(1)
        for expected, *shares in zip(LITERALS[order][1], *samplers, strict=True):
            rows = [share.rows.tolist() for share in shares]
            assert [share.is_filler for share in shares] == [rank >= len(expected) for rank in range(processes)]
            assert [expected[rank::processes] or expected[:1] for rank in range(processes)] == rows


def test_shifted_batch_boundaries_match_recorded_batches() -> None:
    numbers = np.random.default_rng(7)
    sides = [Sequences([[4] * n for n in numbers.integers(1, 9, size=500)]) for _ in range(2)]
    *_, last = epochs(Examples(src=sides[0], tgt=sides[1], texts=None), 3, batch_tokens=60, order="shuffled", seed=3)
    assert (len(last), last[:3]) == (87, [[453, 357, 378, 36], [147, 343, 57, 348], [360, 278, 82]])
    assert sum((i + 1) * (k + 1) * (j + 1) for j, batch in enumerate(last) for k, i in enumerate(batch)) == 22705367


def test_every_rank_gets_equal_shapes_and_fillers_score_nothing(rng: np.random.Generator) -> None:
    ids = random_sequences(rng, 5), random_sequences(rng, 5)
    texts = [(str(i), [str(i)]) for i in range(5)]
    examples = Examples(src=Sequences(ids[0]), tgt=Sequences(ids[1]), texts=texts)
    whole: Any = examples[Share(batch=[4, 0, 3])]
    assert whole["example"].tolist() == [4, 0, 3]
    parts: list[Any] = [examples[Share(batch=[4, 0, 3], rank=rank, processes=5)] for rank in range(5)]
    for name in ("example", "src", "tgt"):
        assert torch.equal(torch.cat([part[name] for part in parts[:3]]), whole[name]), name
    assert [text for part in parts for text in part["source"]] == whole["source"] == ["4", "0", "3"]
    for filler in parts[3:]:
        assert filler["example"].tolist() == [-1]
        assert torch.equal(filler["src"], whole["src"][:1])
        assert filler["tgt"].tolist() == [[ids[1][4][0], *[0] * (whole["tgt"].shape[1] - 1)]]
        assert filler["source"] == filler["references"] == []


def test_the_number_of_batches_is_the_same_in_every_epoch(rng: np.random.Generator) -> None:
    examples = random_examples(rng, 2000)
    sampler = TokenBatchSampler(examples, batch_tokens=250, order="shuffled")
    assert {len(batches) for batches in epochs(examples, 20, batch_tokens=250, order="shuffled")} == {len(sampler)}


def test_the_order_is_a_pure_function_of_seed_and_epoch(rng: np.random.Generator) -> None:
    examples = random_examples(rng, 500)
    first = list(epochs(examples, batch_tokens=300, order="shuffled", seed=5))
    torch.manual_seed(int(rng.integers(100)))
    np.random.seed(int(rng.integers(100)))
    random.seed(int(rng.integers(100)))
    assert list(epochs(examples, batch_tokens=300, order="shuffled", seed=5)) == first
    assert first[0] != first[1]
    assert list(epochs(examples, batch_tokens=300, order="shuffled", seed=6)) != first


def test_sampling_leaves_global_random_states_alone(rng: np.random.Generator) -> None:
    state = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    list(epochs(random_examples(rng, 100), batch_tokens=300, order="shuffled"))
    assert torch.equal(state[0], torch.get_rng_state())
    assert (np.random.get_state()[1].tolist(), random.getstate()) == state[1:]  # type: ignore[index]


def test_shuffling_changes_which_examples_share_a_batch(rng: np.random.Generator) -> None:
    first, second = epochs(random_examples(rng, 3000, longest=10), 2, batch_tokens=300, order="shuffled")
    assert len({frozenset(b) for b in first} & {frozenset(b) for b in second}) < len(first) / 2


def test_without_shuffling_epochs_are_equal_and_start_with_a_fair_sample(rng: np.random.Generator) -> None:
    examples = random_examples(rng, 3000)
    first, second = epochs(examples, 2, batch_tokens=300, order="fixed")
    assert first == second
    lengths = [examples.src.lengths[batch].mean() for batch in first]
    assert abs(np.corrcoef(np.arange(len(lengths)), lengths)[0, 1]) < 0.3


def test_unsorted_batches_keep_the_given_order(rng: np.random.Generator) -> None:
    examples = random_examples(rng, 300)
    (batches,) = epochs(examples, 1, batch_tokens=300, order="given")
    assert [i for batch in batches for i in batch] == list(range(300))


def test_examples_of_similar_length_share_a_batch_to_limit_padding(rng: np.random.Generator) -> None:
    examples = random_examples(rng, 20_000, longest=12)
    assert examples.tgt is not None
    (batches,) = epochs(examples, 1, batch_tokens=2000, order="shuffled")
    tokens = int(examples.src.lengths.sum() + examples.tgt.lengths.sum())
    assert 1 - tokens / sum(padded_size(examples, batch) for batch in batches) < 0.06
    assert tokens / (2000 * len(batches)) > 0.9, "batches are far from full"


def test_alternating_target_order_avoids_mixing_extreme_lengths() -> None:
    cells = [(src, tgt) for src in range(1, 13) for tgt in (2, 30) for _ in range(5)]
    examples = Examples(src=Sequences([[4] * src for src, _ in cells]), tgt=Sequences([[4] * tgt for _, tgt in cells]), texts=None)
    (batches,) = epochs(examples, 1, batch_tokens=800, order="fixed")
    assert sum(padded_size(examples, batch) for batch in batches) < 1.15 * sum(map(sum, cells))  # 1.35 if they always rise


def test_examples_that_fit_stay_in_one_batch(rng: np.random.Generator) -> None:
    assert [len(b) for b in epochs(random_examples(rng, 10), batch_tokens=10_000, order="shuffled")] == [1, 1, 1]


def test_an_example_beyond_the_budget_is_named() -> None:
    sequences = Sequences([[4] * 3, [4] * 60, [4] * 5])
    examples = Examples(src=sequences, tgt=sequences, texts=[("a", ["A"]), ("so long", ["B"]), ("c", ["C"])])
    with pytest.raises(
        ConfigurationError, match=r"example 1 \('so long'\) has 60 source and 60 target positions, more than batch_tokens=100"
    ):
        TokenBatchSampler(examples, batch_tokens=100, order="fixed")
