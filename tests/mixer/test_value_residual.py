"""Value residual, against the paper's equation by a slow loop, in steps, and what it refuses."""

from typing import Any

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit.layers import Transformer, TransformerConfig
from attnkit.registry import ConfigurationError

MIXER: dict[str, Any] = {"name": "multi_head", "value_residual": 0.3}
SIZES: dict[str, Any] = {"d_model": 8, "num_heads": 2, "num_layers": 3}


def stack(*, causal: bool = True, **options: Any) -> Transformer:
    return Transformer(TransformerConfig(**{**SIZES, "mixer": MIXER, "position": "none", **options}), causal=causal).double().eval()


def slow(model: Transformer, x: Tensor) -> Tensor:
    """Return the outputs of a causal stack without feed-forward networks, token by token."""
    first: Tensor | None = None
    for layer in model.layers:
        mixer, y = layer.mixer, layer.mixer_residual.norm(x)
        query, key, value = (part(y).unflatten(-1, (2, 4)) for part in (mixer.query, mixer.key, mixer.value))  # [B, T, H, Dh]
        first = value if first is None else first
        value = (1 - mixer.value_residual.factor) * value + mixer.value_residual.factor * first
        heads = torch.zeros_like(value)
        for t in range(x.shape[1]):
            weights = (torch.einsum("bhd,bkhd->bhk", query[:, t], key[:, : t + 1]) / 2).softmax(-1)
            heads[:, t] = torch.einsum("bhk,bkhd->bhd", weights, value[:, : t + 1])
        x = x + mixer.output(heads.flatten(2))
    return model.final_norm(x)


def test_the_equation_holds_for_whole_sequences_and_steps(seed: int) -> None:
    model = stack(feed_forward="none")
    with torch.no_grad():
        for depth, layer in enumerate(model.layers):
            layer.mixer.value_residual.factor.fill_(0.2 + 0.3 * depth)
    x = torch.randn(2, 7, 8).double()
    whole, _ = model(x)
    torch.testing.assert_close(whole, slow(model, x), rtol=1e-10, atol=1e-10)
    state, steps = None, []
    for part in x.split([3, 1, 1, 2], 1):
        y, state = model(part, state=state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-10, atol=1e-10)


def test_the_first_layer_with_value_residual_provides_the_values(seed: int) -> None:
    """A layer of another kind stands before it; the factor of the first one has no gradient, since it mixes its values with themselves."""
    model = stack(layers=[{"mixer": "convolution"}, {}, {}], feed_forward="none").train()
    assert model.first_value_at == 1
    model(torch.randn(2, 7, 8).double())[0].square().sum().backward()
    one, two = (model.layers[i].mixer.value_residual.factor.grad for i in (1, 2))
    assert abs(float(one)) < 1e-12
    assert abs(float(two)) > 1e-6


def test_value_residual_works_in_an_encoder_with_grouped_heads_and_shared_layers(seed: int) -> None:
    model = stack(causal=False, num_kv_heads=1, layers=[{"share": True}])
    x = torch.randn(2, 5, 8).double()
    plain = stack(causal=False, num_kv_heads=1, layers=[{"share": True}])
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        plain.layers[0].mixer.value_residual.factor.zero_()
    assert not torch.allclose(model(x)[0], plain(x)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 1}, "value_residual has no effect in a single layer"),
        ({"window": 3}, "needs all values of its first layer"),
        ({"layers": [{}, {"num_heads": 4}]}, "the same number and width"),
        ({"layers": [{}, {"mixer": {"name": "multi_head", "value_residual": 0.5, "value_dim": 2}}]}, "the same number and width"),
        ({"mixer": {"name": "parallel", "mixers": [MIXER, "rwkv"]}}, "does not work inside the mixer 'parallel'"),
        ({"mixer": {**MIXER, "value_residual": 0.0}}, r"in \(0, 1\], but is 0.0"),
    ],
)
def test_unsupported_options_are_rejected(options: dict[str, Any], message: str) -> None:
    sizes = {} if "layers" in options else {"num_layers": 2}
    with pytest.raises(ConfigurationError, match=message):
        attnkit.stacks.build({"name": "decoder", "d_model": 8, "num_heads": 2, "mixer": MIXER, "position": "none", **sizes, **options})


def test_value_residual_is_rejected_in_a_cross_mixer() -> None:
    with pytest.raises(ConfigurationError, match="remove it from the cross_mixer"):
        attnkit.stacks.build({"name": "encoder_decoder", **SIZES, "cross_mixer": MIXER})
