import pytest
import torch

import attnkit


@pytest.mark.parametrize("scale", [True, False])
def test_rows_times_the_square_root_of_the_width(scale: bool, seed: int) -> None:
    embedding = attnkit.embeddings.build({"name": "token", "scale": scale}, vocab_size=10, d_model=16)
    tokens = torch.randint(10, (2, 3))
    for b in range(2):
        for t in range(3):
            torch.testing.assert_close(embedding(tokens)[b, t], embedding.weight[tokens[b, t]] * (4.0 if scale else 1.0))


def test_vectors_and_tied_logits_start_with_unit_variance(seed: int) -> None:
    embedding = attnkit.embeddings.build("token", vocab_size=400, d_model=256)
    assert embedding(torch.arange(400)[None]).var().item() == pytest.approx(1, rel=0.05)
    assert (torch.randn(200, 256) @ embedding.weight.T).var().item() == pytest.approx(1, rel=0.05)


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size must be positive, but is 0"):
        attnkit.embeddings.build("token", vocab_size=0, d_model=4)
