import pytest
import torch

import attnkit
from attnkit import ConfigurationError


@pytest.mark.parametrize("scale", [True, False])
def test_rows_are_scaled_by_the_square_root_of_the_width(scale: bool, seed: int) -> None:
    embedding = attnkit.embeddings.build({"name": "token", "scale": scale}, vocab_size=10, d_model=16)
    tokens = torch.randint(10, (2, 3))
    for b in range(2):
        for t in range(3):
            torch.testing.assert_close(embedding(tokens)[b, t], embedding.weight[tokens[b, t]] * (4.0 if scale else 1.0))


def test_vectors_and_tied_logits_start_with_unit_variance(seed: int) -> None:
    embedding = attnkit.embeddings.build("token", vocab_size=400, d_model=256)
    assert embedding(torch.arange(400)[None]).var().item() == pytest.approx(1, rel=0.05)
    assert (torch.randn(200, 256) @ embedding.weight.T).var().item() == pytest.approx(1, rel=0.05)


def test_each_segment_adds_its_vector_and_the_default_is_the_first_segment(seed: int) -> None:
    embedding = attnkit.embeddings.build({"name": "token", "scale": False, "num_segments": 2}, vocab_size=10, d_model=4)
    tokens, segments = torch.randint(10, (2, 3)), torch.tensor([[0, 0, 1], [0, 1, 1]])
    torch.testing.assert_close(embedding(tokens, segments), embedding.weight[tokens] + embedding.segment[segments])
    torch.testing.assert_close(embedding(tokens), embedding(tokens, torch.zeros_like(tokens)))
    assert not torch.equal(embedding(tokens), embedding(tokens, torch.ones_like(tokens)))


def test_an_embedding_without_segments_refuses_them() -> None:
    embedding = attnkit.embeddings.build("token", vocab_size=10, d_model=4)
    assert [name for name, _ in embedding.named_parameters()] == ["weight"]
    with pytest.raises(ConfigurationError, match=r"no segments; use {name: token, num_segments: 2}"):
        embedding(torch.tensor([[1]]), torch.tensor([[0]]))


def test_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size must be positive, but is 0"):
        attnkit.embeddings.build("token", vocab_size=0, d_model=4)
    with pytest.raises(ValueError, match="num_segments must be at least 0, but is -1"):
        attnkit.embeddings.build({"name": "token", "num_segments": -1}, vocab_size=3, d_model=4)


@pytest.mark.parametrize("tokens", [torch.tensor([1, 2]), torch.ones(1, 2, 3, dtype=torch.long), torch.rand(1, 2)])
def test_inputs_other_than_batches_of_token_ids_are_rejected(tokens: torch.Tensor) -> None:
    embedding = attnkit.embeddings.build("token", vocab_size=10, d_model=4)
    with pytest.raises(ValueError, match=r"tokens must be integers \[B, T\], but are torch\.\w+ \["):
        embedding(tokens)


@pytest.mark.parametrize("wrong", [-1, 9])
def test_an_id_outside_of_the_vocabulary_is_named(wrong: int) -> None:
    model = attnkit.compose(stack="decoder", d_model=16, num_layers=1, num_heads=2, vocab_size=9)
    with pytest.raises(IndexError, match=f"^the id {wrong} is outside of the vocabulary, whose ids are 0 to 8$"):
        model(torch.tensor([[3, wrong]]))
