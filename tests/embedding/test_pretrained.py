import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnkit
from attnkit import ConfigurationError
from attnkit.embedding.pretrained import Pretrained
from attnkit.task.parameters import parameter_groups

WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "the", "Paris", "sat", "US"]


@pytest.fixture
def vectors(tmp_path: Path, seed: int) -> dict[str, list[float]]:
    return {word: torch.randn(3).tolist() for word in ("the", "paris", "us", "US", "mat")}


@pytest.fixture
def path(tmp_path: Path, vectors: dict[str, list[float]]) -> str:
    file = tmp_path / "vectors.txt"
    file.write_text("".join(f"{word} {' '.join(map(str, v))}\n" for word, v in vectors.items()))
    return str(file)


def build(path: str, d_model: int = 3, **arguments: Any) -> Pretrained:
    embedding: Pretrained = attnkit.embeddings.build(
        {"name": "pretrained", "path": path, "dim": 3, **arguments}, vocab_size=len(WORDS), d_model=d_model
    )
    return embedding


@pytest.mark.parametrize("tune", [False, True])
def test_exact_matches_take_precedence_over_lower_case(tune: bool, path: str, vectors: dict[str, list[float]]) -> None:
    embedding = build(path, tune=tune, scale=False)
    counts = embedding.load_vectors(WORDS)
    assert counts == (2, 1, 5)
    assert str(counts) == "3 of 8 words have a vector (1 only in lower case), 5 do not"
    x = embedding(torch.tensor([[4, 5, 7]]))[0]
    torch.testing.assert_close(x, torch.tensor([vectors["the"], vectors["paris"], vectors["US"]]))


def test_without_lowercasing_only_exact_matches_count(path: str) -> None:
    counts = build(path, lowercase=False).load_vectors(WORDS)
    assert counts == (2, 0, 6)
    assert str(counts) == "2 of 8 words have a vector, 6 do not"


def test_scaled_vectors_have_unit_mean_square_and_the_same_directions(path: str, vectors: dict[str, list[float]]) -> None:
    embedding = build(path)
    embedding.load_vectors(WORDS)
    x = embedding(torch.tensor([[4, 5, 7]]))[0].detach()
    assert x.square().mean().item() == pytest.approx(1, rel=1e-5)
    ratio = x / torch.tensor([vectors["the"], vectors["paris"], vectors["US"]])
    torch.testing.assert_close(ratio, ratio[0, 0].expand(3, 3))


@pytest.mark.parametrize("scale", [False, True])
def test_unknown_words_are_drawn_with_the_standard_deviation_of_known_ones(scale: bool, tmp_path: Path, seed: int) -> None:
    known = 0.3 * torch.randn(400, 20).double()
    path = tmp_path / "vectors.txt"
    path.write_text("".join(f"k{i} {' '.join(map(str, row.tolist()))}\n" for i, row in enumerate(known)))
    embedding = Pretrained(vocab_size=800, d_model=20, path=str(path), dim=20, scale=scale)
    embedding.load_vectors([f"k{i}" for i in range(400)] + [f"u{i}" for i in range(400)])
    unknown = embedding(torch.arange(400, 800)[None])
    assert unknown.std().item() == pytest.approx(1 if scale else 0.3, rel=0.05)


@pytest.mark.parametrize(("tune", "moves"), [(False, [3, 6]), (True, [3, 4, 5, 6, 7])])
def test_pretrained_vectors_train_only_if_tuned_but_unknown_words_always(tune: bool, moves: list[int], path: str) -> None:
    embedding = build(path, tune=tune)
    embedding.load_vectors(WORDS)
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    before = embedding(ids)[0].detach()
    optimizer = torch.optim.AdamW(parameter_groups(embedding), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        embedding(ids).square().sum().backward()
        optimizer.step()
    changed = (embedding(ids)[0] != before).any(1)
    assert [i for i, c in zip(ids[0].tolist(), changed.tolist(), strict=True) if c] == moves


def test_a_linear_map_adapts_the_width_of_the_vectors(path: str, vectors: dict[str, list[float]]) -> None:
    embedding = build(path, d_model=5, scale=False)
    embedding.load_vectors(WORDS)
    assert build(path).projection is None
    assert embedding.projection is not None
    torch.testing.assert_close(embedding(torch.tensor([[4]]))[0, 0], embedding.projection.weight @ torch.tensor(vectors["the"]))


def test_a_checkpoint_needs_no_vector_file_and_missing_vectors_raise(path: str) -> None:
    first, second = build(path, d_model=4), build("absent.txt", d_model=4)
    ids = torch.randint(8, (2, 3))
    with pytest.raises(ConfigurationError, match=r"vectors of absent.txt are not loaded"):
        second(ids)
    second.load_state_dict(first.state_dict())  # this state dict has no vectors
    with pytest.raises(ConfigurationError, match="not loaded"):
        second(ids)
    first.load_vectors(WORDS)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(ids), second(ids))
    assert torch.equal(first(ids), copy.deepcopy(first)(ids))


def test_missing_files_foreign_vocabularies_and_wrong_sizes_are_rejected(path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no vector file .*vector.txt.* Did you mean 'vectors.txt'"):
        build(str(tmp_path / "vector.txt")).load_vectors(WORDS)
    with pytest.raises(ConfigurationError, match="has none of the 8 words"):
        build(path).load_vectors([f"Ġ{i}" for i in range(8)])
    with pytest.raises(ValueError, match="the vocabulary has 8 words, but 2 were given"):
        build(path).load_vectors(["the", "us"])
    with pytest.raises(ValueError, match="must be positive"):
        build(path, dim=0)
    with pytest.raises(ConfigurationError, match="no segments"):
        build(path)(torch.tensor([[1]]), torch.tensor([[0]]))


def test_zero_vectors_stay_zero(tmp_path: Path) -> None:
    path = tmp_path / "zeros.txt"
    path.write_text("a 0 0\nb 0 0\n")
    embedding = Pretrained(vocab_size=2, d_model=2, path=str(path), dim=2)
    embedding.load_vectors(["a", "b"])
    assert np.array_equal(embedding(torch.tensor([[0, 1]])).detach(), np.zeros((1, 2, 2)))
