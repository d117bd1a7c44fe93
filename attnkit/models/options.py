"""The arguments of `attnkit.compose` for each built-in stack, for type checkers and editors; at run time, stack and model check them."""

from collections.abc import Sequence
from typing import Literal, Required, TypedDict

from attnkit.layers.config import (
    EncoderDecoderOptions,
    RecurrentEncoderDecoderOptions,
    RecurrentEncoderOptions,
    RecurrentOptions,
    TransformerOptions,
)
from attnkit.models.base import Tie
from attnkit.models.pooling import Pooling
from attnkit.registry import EmbeddingSpec, HeadSpec, InitSpec, MultiTokenSpec


class ModelOptions(TypedDict, total=False):
    """The arguments of every model."""

    embedding: EmbeddingSpec
    init: InitSpec
    pad_id: int
    bos_id: int
    eos_id: int | None


class TokenModelOptions(ModelOptions, total=False):
    """The arguments for `EncoderModel` and `DecoderModel`."""

    vocab_size: Required[int]
    tie: Literal["none", "output"]
    head: HeadSpec


class ClassifierModelOptions(ModelOptions, total=False):
    """The arguments for `ClassifierModel`."""

    num_classes: Required[int]
    vocab_size: int | None
    image_shape: Sequence[int] | None
    pooling: Pooling | None
    pooler: bool


class EncoderDecoderModelOptions(ModelOptions, total=False):
    """The arguments for `EncoderDecoderModel`."""

    src_vocab_size: int | None
    src_shape: Sequence[int] | None
    src_embedding: EmbeddingSpec | None
    tgt_vocab_size: Required[int]
    tie: Tie
    head: HeadSpec


class EncoderArguments(TokenModelOptions, TransformerOptions):
    """The arguments for `encoder`."""


class EncoderClassifierArguments(ClassifierModelOptions, TransformerOptions):
    """The arguments for `encoder` and `decoder` with `num_classes`."""


class DecoderArguments(TokenModelOptions, TransformerOptions, total=False):
    """The arguments for `decoder`."""

    multi_token: MultiTokenSpec | None


class EncoderDecoderArguments(EncoderDecoderModelOptions, EncoderDecoderOptions):
    """The arguments for `encoder_decoder`."""


class RecurrentEncoderArguments(TokenModelOptions, RecurrentEncoderOptions):
    """The arguments for `recurrent_encoder`."""


class RecurrentEncoderClassifierArguments(ClassifierModelOptions, RecurrentEncoderOptions):
    """The arguments for `recurrent_encoder` with `num_classes`."""


class RecurrentDecoderArguments(TokenModelOptions, RecurrentOptions, total=False):
    """The arguments for `recurrent_decoder`."""

    multi_token: MultiTokenSpec | None


class RecurrentDecoderClassifierArguments(ClassifierModelOptions, RecurrentOptions):
    """The arguments for `recurrent_decoder` with `num_classes`."""


class RecurrentEncoderDecoderArguments(EncoderDecoderModelOptions, RecurrentEncoderDecoderOptions):
    """The arguments for `recurrent_encoder_decoder`."""
