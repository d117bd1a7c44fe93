import pytest
import torch

from attnkit import ConfigurationError, embeddings


def test_each_vector_is_a_linear_map_of_stacked_frames() -> None:
    frames = embeddings.build({"name": "frames", "stacking": 3}, d_model=4, num_features=2).double()
    x = torch.randn(2, 7, 2, dtype=torch.float64)
    y = frames(x)
    padded = torch.cat([x, torch.zeros(2, 2, 2, dtype=torch.float64)], 1)
    weight, bias = frames.projection.weight, frames.projection.bias
    expected = torch.stack([padded[:, 3 * t : 3 * t + 3].flatten(1) @ weight.T + bias for t in range(3)], 1)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "reads frames, but num_features is missing"),
        ({"num_features": 2, "stacking": 0}, "stacking must be at least 1"),
    ],
)
def test_wrong_sizes_are_refused(given: dict[str, int], message: str) -> None:
    own = {"stacking": given.pop("stacking")} if "stacking" in given else {}
    with pytest.raises(ConfigurationError, match=message):
        embeddings.build({"name": "frames", **own}, d_model=4, **given)


def test_frames_of_another_width_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="reads frames of 2 features, but these have 3"):
        embeddings.build("frames", d_model=4, num_features=2)(torch.zeros(1, 4, 3))
