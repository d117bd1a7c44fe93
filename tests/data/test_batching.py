import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from attnkit import ConfigurationError
from attnkit.data import Examples, Sequences, TokenBatchSampler


def random_sequences(rng: np.random.Generator, count: int, longest: int = 30) -> list[list[int]]:
    return [rng.integers(4, 50, size=rng.integers(1, longest + 1)).tolist() for _ in range(count)]


def random_examples(rng: np.random.Generator, count: int, longest: int = 30) -> Examples:
    return Examples(src=Sequences(random_sequences(rng, count, longest)), tgt=Sequences(random_sequences(rng, count, longest)), texts=None)


def epochs(examples: Examples, count: int = 3, **options: int | str) -> Iterator[list[list[int]]]:
    sampler = TokenBatchSampler(examples, **options)  # type: ignore[arg-type]
    for epoch in range(count):
        sampler.set_epoch(epoch)
        yield list(sampler)


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


def test_a_batch_of_training_has_tensors_only(rng: np.random.Generator) -> None:
    assert set(random_examples(rng, 5)[[3, 1]]) == {"src", "tgt"}


@pytest.mark.parametrize("order", ["shuffled", "fixed", "given"])
@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_every_example_comes_once_per_epoch_within_the_budget(order: str, processes: int, rng: np.random.Generator) -> None:
    examples = random_examples(rng, int(rng.integers(100, 3000)))
    shares = [epochs(examples, batch_tokens=300, order=order, num_replicas=processes, rank=rank) for rank in range(processes)]
    for parts in zip(*shares, strict=True):
        assert len({len(part) for part in parts}) == 1, "a process has fewer batches than another"
        batches = [batch for part in parts for batch in part]
        assert sorted(i for batch in batches for i in batch) == list(range(len(examples)))
        assert all(batch for batch in batches)
        assert max(padded_size(examples, batch) for batch in batches) <= 300


def test_the_number_of_batches_is_the_same_in_every_epoch(rng: np.random.Generator) -> None:
    examples = random_examples(rng, 2000)
    sampler = TokenBatchSampler(examples, batch_tokens=250, order="shuffled", num_replicas=3, rank=0)
    assert {len(batches) for batches in epochs(examples, 20, batch_tokens=250, order="shuffled", num_replicas=3, rank=0)} == {len(sampler)}


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


def test_shuffling_changes_who_is_batched_with_whom(rng: np.random.Generator) -> None:
    first, second = epochs(random_examples(rng, 3000, longest=10), 2, batch_tokens=300, order="shuffled")
    assert len({frozenset(b) for b in first} & {frozenset(b) for b in second}) < len(first) / 2


def test_without_shuffling_every_epoch_is_the_same_and_starts_with_a_fair_sample(rng: np.random.Generator) -> None:
    examples = random_examples(rng, 3000)
    first, second = epochs(examples, 2, batch_tokens=300, order="fixed")
    assert first == second
    lengths = [examples.src.lengths[batch].mean() for batch in first]
    assert abs(np.corrcoef(np.arange(len(lengths)), lengths)[0, 1]) < 0.3


def test_unsorted_batches_keep_the_given_order(rng: np.random.Generator) -> None:
    examples = random_examples(rng, 300)
    (batches,) = epochs(examples, 1, batch_tokens=300, order="given")
    assert [i for batch in batches for i in batch] == list(range(300))


def test_neighbours_in_length_share_a_batch_so_that_little_is_padding(rng: np.random.Generator) -> None:
    examples = random_examples(rng, 20_000, longest=12)
    assert examples.tgt is not None
    (batches,) = epochs(examples, 1, batch_tokens=2000, order="shuffled")
    tokens = int(examples.src.lengths.sum() + examples.tgt.lengths.sum())
    assert 1 - tokens / sum(padded_size(examples, batch) for batch in batches) < 0.06
    assert tokens / (2000 * len(batches)) > 0.9, "batches are far from full"


def test_targets_rise_and_fall_in_turn_so_that_no_batch_mixes_the_longest_with_the_shortest() -> None:
    cells = [(src, tgt) for src in range(1, 13) for tgt in (2, 30) for _ in range(5)]
    examples = Examples(src=Sequences([[4] * src for src, _ in cells]), tgt=Sequences([[4] * tgt for _, tgt in cells]), texts=None)
    (batches,) = epochs(examples, 1, batch_tokens=800, order="fixed")
    assert sum(padded_size(examples, batch) for batch in batches) < 1.15 * sum(map(sum, cells))  # 1.35 if they always rise


def test_few_examples_that_fit_stay_in_one_batch(rng: np.random.Generator) -> None:
    assert [len(b) for b in epochs(random_examples(rng, 10), batch_tokens=10_000, order="shuffled")] == [1, 1, 1]


def test_an_example_beyond_the_budget_is_named() -> None:
    sequences = Sequences([[4] * 3, [4] * 60, [4] * 5])
    examples = Examples(src=sequences, tgt=sequences, texts=[("a", ["A"]), ("so long", ["B"]), ("c", ["C"])])
    with pytest.raises(
        ConfigurationError, match=r"example 1 \('so long'\) has 60 source and 60 target positions, more than batch_tokens=100"
    ):
        TokenBatchSampler(examples, batch_tokens=100, order="fixed")


def test_fewer_examples_than_processes_are_refused(rng: np.random.Generator) -> None:
    with pytest.raises(ConfigurationError, match=r"3 examples make 1 batches .* cannot be dealt out evenly to 4 processes"):
        TokenBatchSampler(random_examples(rng, 3), batch_tokens=4000, order="fixed", num_replicas=4, rank=0)
