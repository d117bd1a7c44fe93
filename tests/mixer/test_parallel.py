"""Mixers side by side."""

from typing import Any

import pytest
import torch

import attnkit
from attnkit.mixer import Tokens
from attnkit.mixer.convolution import Convolution
from attnkit.registry import ConfigurationError, mixers

X = torch.linspace(-2, 2, 2 * 9 * 8, dtype=torch.float64).sin().view(2, 9, 8)


def test_outputs_are_added_and_each_mixer_keeps_its_state(seed: int) -> None:
    both = mixers.build({"name": "parallel", "mixers": ["rwkv", {"name": "state_space", "state_dim": 6}]}, d_model=8, num_heads=2).double()
    first, second = both.mixers
    y, state = both(X, Tokens())
    torch.testing.assert_close(y, first(X, Tokens())[0] + second(X, Tokens())[0], rtol=1e-12, atol=1e-12)
    start, state = both(X[:, :4], Tokens())
    end, state = both(X[:, 4:], Tokens(), state)
    torch.testing.assert_close(torch.cat([start, end], 1), y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ({"mixers": []}, {}, "at least one"),
        ({}, {"window": 3}, "takes no window"),
    ],
)
def test_unsupported_options_are_rejected(spec: dict[str, object], options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        mixers.build({"name": "parallel", **spec}, d_model=8, num_heads=2, **options)


def test_a_stack_passes_its_options_to_every_branch(seed: int) -> None:
    model = attnkit.compose(
        stack="decoder", d_model=8, num_layers=1, num_heads=2, num_kv_heads=1, vocab_size=9, position="rotary", mixer="parallel", bias=False
    )
    attention, _ = model.stack.decoder.layers[0].mixer.mixers
    assert attention.key.weight.shape == (4, 8)
    assert attention.key.bias is None


@pytest.mark.parametrize(
    ("stack", "mixers", "options", "message"),
    [
        ("encoder", ["multi_head", "rwkv"], {}, "mixer 'rwkv' does not work in an encoder"),
        ("decoder", ["multi_head", "fourier"], {}, "mixer 'fourier' does not work in a decoder"),
        ("decoder", ["rwkv", "convolution"], {"attention": "additive"}, "attention has no effect: no layer has a mixer that reads it"),
        ("decoder", ["retention", "rwkv"], {"bias": False}, "bias has no effect"),
        ("decoder", ["rwkv"], {"layers": [{"num_heads": 4}]}, "num_heads has no effect in a layer with the mixer 'parallel'"),
        ("decoder", ["retention"], {"position": "alibi"}, "position 'alibi' has no effect"),
    ],
)
def test_options_that_no_branch_reads_are_rejected(stack: str, mixers: list[str], options: dict[str, object], message: str) -> None:
    spec = {"name": "parallel", "mixers": mixers}
    with pytest.raises(ConfigurationError, match=message):
        attnkit.stacks.build({"name": stack, "d_model": 8, "num_layers": 1, "num_heads": 2, "position": "none", "mixer": spec, **options})


def test_parallel_mixers_cannot_read_a_memory() -> None:
    spec = {"name": "parallel", "mixers": ["multi_head", "linear_attention"]}
    with pytest.raises(ConfigurationError, match="mixer 'parallel' does not work as a reader of a memory"):
        attnkit.stacks.build({"name": "encoder_decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "cross_mixer": spec})


class Dropping(Convolution):
    """A mixer that reads the dropout of its layer."""

    def __init__(self, *, d_model: int, dropout: float) -> None:
        super().__init__(d_model=d_model)
        self.p = dropout


def test_each_mixer_gets_the_dropout_of_the_layer() -> None:
    spec = {"name": "parallel", "mixers": ["multi_head", f"{__name__}.Dropping"]}
    stack = attnkit.stacks.build({"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "mixer": spec, "dropout": 0.25})
    assert stack.decoder.layers[0].mixer.mixers[1].p == 0.25


@pytest.mark.parametrize("position", ["alibi", "cope", "rotary"])
@pytest.mark.parametrize("other", ["retention", "latent_attention", "rwkv", {"name": "parallel", "mixers": ["multi_head", "retention"]}])
def test_each_mixer_gets_the_positions_it_would_have_alone(position: str, other: Any, seed: int) -> None:
    sizes: dict[str, Any] = {"d_model": 8, "num_layers": 1, "num_heads": 2, "feed_forward": "none", "residual": "none"}

    def stack(mixer: Any) -> Any:
        try:
            return attnkit.stacks.build({"name": "decoder", **sizes, "mixer": mixer, "position": position}).double()
        except ConfigurationError:  # it does not apply them
            return attnkit.stacks.build({"name": "decoder", **sizes, "mixer": mixer, "position": "none"}).double()

    both, first, second = stack({"name": "parallel", "mixers": ["multi_head", other]}), stack("multi_head"), stack(other)
    for alone, part in zip((first, second), both.decoder.layers[0].mixer.mixers, strict=True):
        part.load_state_dict(alone.decoder.layers[0].mixer.state_dict())
    for alone in (first, second):
        alone.decoder.position.load_state_dict(both.decoder.position.state_dict(), strict=False)
    torch.testing.assert_close(both(X)[0], first(X)[0] + second(X)[0], rtol=1e-12, atol=1e-12)
