"""`attnkit.compose` as type checkers see it. mypy reads this file too: an ignored error that is no error fails there."""

from typing import Any, assert_type

import pytest

import attnkit
from attnkit import ConfigurationError
from attnkit.models import ClassifierModel, DecoderModel, EncoderDecoderModel, EncoderModel


def test_the_stack_and_num_classes_determine_the_model_type() -> None:
    decoder = attnkit.compose(stack="decoder", d_model=8, num_layers=1, num_heads=2, vocab_size=9)
    encoder = attnkit.compose(stack="recurrent_encoder", d_model=8, num_layers=1, vocab_size=9, head="bert")
    pair = attnkit.compose(stack="encoder_decoder", d_model=8, num_layers=1, num_heads=2, src_vocab_size=9, tgt_vocab_size=9, tie="all")
    classifier = attnkit.compose(stack="encoder", d_model=8, num_layers=1, num_heads=2, vocab_size=9, num_classes=3)
    assert_type(decoder, DecoderModel)
    assert_type(encoder, EncoderModel)
    assert_type(pair, EncoderDecoderModel)
    assert_type(classifier, ClassifierModel)
    kinds = [type(model) for model in (decoder, encoder, pair, classifier)]
    assert kinds == [DecoderModel, EncoderModel, EncoderDecoderModel, ClassifierModel]


def test_a_mapping_or_a_spec_is_typed_as_any() -> None:
    model = attnkit.compose(stack={"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2}, vocab_size=9)
    assert_type(model, Any)
    assert attnkit.compose(**model.spec).spec == model.spec


def test_type_checkers_reject_misspelt_missing_and_mistyped_options() -> None:
    with pytest.raises(ConfigurationError, match="no argument 'num_head'"):
        attnkit.compose(stack="decoder", d_model=8, num_layers=1, num_heads=2, num_head=2, vocab_size=9)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="needs num_heads"):
        attnkit.compose(stack="decoder", d_model=8, num_layers=1, vocab_size=9)
    with pytest.raises(ConfigurationError, match="needs src_vocab_size"):
        attnkit.compose(stack="encoder_decoder", d_model=8, num_layers=1, num_heads=2, tgt_vocab_size=9)
    with pytest.raises(ConfigurationError, match="d_model must be int"):
        attnkit.compose(stack="decoder", d_model="8", num_layers=1, num_heads=2, vocab_size=9)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="unknown stack 'decodr'"):
        attnkit.compose(stack="decodr", d_model=8, num_layers=1, num_heads=2, vocab_size=9)  # type: ignore[call-overload]
