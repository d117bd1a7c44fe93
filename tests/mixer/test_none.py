"""A mixer or a feed-forward network `none` omits the sublayer."""

from typing import Any

import torch

from attnkit.layers import Transformer, TransformerConfig, TransformerLayer
from attnkit.mixer import Tokens

SIZES: dict[str, Any] = {"d_model": 8, "num_heads": 2}


def test_a_layer_without_sublayers_is_the_identity_without_parameters(seed: int) -> None:
    layer = TransformerLayer(**SIZES, mixer="none", feed_forward="none", residual="post_norm")
    x = torch.randn(2, 3, 8)
    assert torch.equal(layer(x, Tokens())[0], x)
    assert not list(layer.parameters())


def test_a_layer_without_a_mixer_is_its_feed_forward_network(seed: int) -> None:
    layer = TransformerLayer(**SIZES, mixer="none", residual="post_norm")
    x = torch.randn(2, 3, 8)
    expected = layer.feed_forward_residual.norm(x + layer.feed_forward(x))
    torch.testing.assert_close(layer(x, Tokens())[0], expected)
    assert not [name for name, _ in layer.named_parameters() if "mixer" in name]


def test_a_stack_without_mixers_treats_tokens_independently(seed: int) -> None:
    stack = Transformer(TransformerConfig(d_model=8, num_layers=2, mixer="none"), causal=True).double()
    x = torch.randn(1, 4, 8).double()
    other = x.clone()
    other[:, 0] += 1
    assert torch.equal(stack(x)[0][:, 1:], stack(other)[0][:, 1:])
    assert stack(x)[1].layers == (None, None)
