"""Options are declared once: what editors see of `compose`, what stacks take and what they document are the fields of one class."""

import inspect
from dataclasses import FrozenInstanceError, fields
from typing import Any, get_type_hints

import pytest

import attnkit
from attnkit.layers import config
from attnkit.mixer import MixerConfig

CONFIGS = {
    "encoder": config.TransformerConfig,
    "decoder": config.TransformerConfig,
    "encoder_decoder": config.EncoderDecoderConfig,
    "recurrent_encoder": config.RecurrentEncoderConfig,
    "recurrent_decoder": config.RecurrentConfig,
    "recurrent_encoder_decoder": config.RecurrentEncoderDecoderConfig,
}


def test_every_stack_has_a_configuration() -> None:
    assert set(CONFIGS) == attnkit.stacks.built_in()


@pytest.mark.parametrize("stack", sorted(CONFIGS))
def test_a_stack_accepts_the_fields_with_their_types_and_defaults(stack: str) -> None:
    declared = inspect.signature(CONFIGS[stack]).parameters
    taken = inspect.signature(attnkit.stacks.get(stack)).parameters
    assert {name: (p.kind, p.default) for name, p in taken.items()} == {name: (p.kind, p.default) for name, p in declared.items()}
    assert get_type_hints(attnkit.stacks.get(stack).__init__, include_extras=True) == get_type_hints(CONFIGS[stack], include_extras=True)


@pytest.mark.parametrize("stack", sorted(CONFIGS))
def test_a_stack_documents_every_field_once(stack: str) -> None:
    documentation = attnkit.stacks.describe(stack).documentation
    for field in fields(CONFIGS[stack]):
        assert documentation.count(f"\n    {field.name}: ") == 1, field.name


@pytest.mark.parametrize("name", ["Transformer", "EncoderDecoder", "Recurrent", "RecurrentEncoder", "RecurrentEncoderDecoder"])
def test_the_typed_options_match_the_fields(name: str) -> None:
    options, cls = getattr(config, f"{name}Options"), getattr(config, f"{name}Config")
    assert get_type_hints(options, include_extras=False) == get_type_hints(cls, include_extras=False)
    assert options.__required_keys__ == {name for name, p in inspect.signature(cls).parameters.items() if p.default is p.empty}


def test_a_mixer_may_read_every_option_of_a_layer_that_concerns_mixing() -> None:
    assert attnkit.mixers.given == {field.name for field in fields(MixerConfig)} | {"dropout"}


def test_a_configuration_cannot_be_changed() -> None:
    options = config.RecurrentConfig(d_model=8, num_layers=1)
    with pytest.raises(FrozenInstanceError):
        options.d_model = 16  # type: ignore[misc]


@pytest.mark.parametrize(
    ("stack", "wrong", "message"),
    [
        ("decoder", {"num_layers": 0}, "num_layers must be positive, but is 0"),
        ("decoder", {"window": 0}, "window must be at least 2, but is 0"),
        (
            "decoder",
            {"window": 1},
            "window must be at least 2, but is 1: it includes the token itself, which could then read no other token",
        ),
        ("encoder", {"dropout": -0.1}, r"^stack 'encoder': dropout must be in \[0, 1\], but is -0.1"),
        ("encoder_decoder", {"attention_dropout": 2.0}, r"^stack 'encoder_decoder': attention_dropout must be in "),
        ("encoder_decoder", {"num_decoder_layers": 0}, "num_decoder_layers must be positive, but is 0"),
        ("recurrent_encoder_decoder", {"num_decoder_layers": 0}, "num_decoder_layers must be positive, but is 0"),
        ("recurrent_encoder_decoder", {"attention_dropout": 2.0}, r"^stack 'recurrent_encoder_decoder': attention_dropout must be "),
        ("recurrent_decoder", {"d_model": 0}, "d_model must be positive, but is 0"),
    ],
)
def test_an_out_of_range_value_is_rejected_by_its_own_name(stack: str, wrong: dict[str, Any], message: str) -> None:
    sizes = {"d_model": 8, "num_layers": 1} | ({} if stack == "recurrent_decoder" else {"num_heads": 2})
    with pytest.raises(ValueError, match=message):
        attnkit.stacks.build({"name": stack, **sizes, **wrong})
