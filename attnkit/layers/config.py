"""The options of the stacks. Each is declared once, here, with its type, default and meaning; a stack passes them on in one object.

The classes `...Options` give type checkers and editors the same fields as keyword arguments of `attnkit.compose`.
"""

from dataclasses import dataclass, replace
from typing import Literal, Required, TypedDict

from attnkit.mixer import AttentionConfig, Direction
from attnkit.mixer.config import check_probability
from attnkit.mixer.recurrence.recurrent_layer import Cell
from attnkit.registry import (
    AttentionSpec,
    BackendName,
    ConfigurationError,
    FeedForwardSpec,
    LayerSpec,
    MixerSpec,
    NormSpec,
    PositionSpec,
    ResidualSpec,
    StackSpec,
    check_positive,
    refuse_unread,
)

Placement = Literal["after", "before"]


@dataclass(frozen=True, kw_only=True)
class LayerConfig(AttentionConfig):
    """The options of a layer. In a list of layers, each may have its own.

    Args:
        mixer: The module that moves information between tokens.
        position: The position encoding. Layers with equal positions share them unless `shared_positions` is false; an encoder and its
            decoder each have their own.
        norm: The normalisation layer.
        feed_forward: The position-wise feed-forward network.
        residual: How each sublayer joins the residual stream.
        dropout: Probability of dropping an element of the embeddings and of each sublayer's output.

    Raises:
        ValueError: A width, count or probability is out of range.
    """

    mixer: MixerSpec = "multi_head"
    position: PositionSpec = "sinusoidal"
    norm: NormSpec = "layer_norm"
    feed_forward: FeedForwardSpec = "mlp"
    residual: ResidualSpec = "pre_norm"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability(dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class PlacedLayerConfig(LayerConfig):
    """The options of a layer in its stack.

    Args:
        direction: Which tokens the mixer reads: earlier ones (`causal`) or all (`bidirectional`).
        cross_mixer: The mixer that reads a memory, or None for a layer without memory.
        cross_attention: The score of `cross_mixer`.
        layer: The index of the layer, from 0.
        depth: Number of layers in the stack.
        memory_depth: Number of layers in the stack whose output is the memory, or None without a memory.
    """

    direction: Direction = "causal"
    cross_mixer: MixerSpec | None = None
    cross_attention: AttentionSpec = "scaled_dot_product"
    layer: int = 0
    depth: int = 1
    memory_depth: int | None = None

    @property
    def cross(self) -> LayerConfig:
        """The options of the mixer that reads the memory."""
        return replace(self, mixer=self.cross_mixer or "none", attention=self.cross_attention, window=None)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(LayerConfig):
    """The options of the stacks `encoder` and `decoder`.

    Args:
        num_layers: Number of layers (default: `layers` once).
        layers: A pattern of layers, repeated until there are `num_layers`. Each entry maps the options in which it differs from the stack
            to their values, and may set `repeat` (the number of such layers in succession) and `share` (whether all its occurrences
            share one set of parameters); `{}` is a layer with the options of the stack, as all layers are by default.
        shared_positions: Whether layers with equal positions share their parameters, as in T5, or each layer has its own (UMT5).
        skips: Whether each layer of the second half also reads the output of its mirror image in the first half, with a learned weight
            that starts at one, like the skip connections of a U-Net.
        embedding_norm: Whether to normalise the sum of embeddings and positions before dropout (BERT).
        final_norm: Whether a norm follows the last layer (default: if the residual kind needs one).
    """

    num_layers: int | None = None
    layers: list[LayerSpec] | None = None
    shared_positions: bool = True
    skips: bool = False
    embedding_norm: bool = False
    final_norm: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(num_layers=self.num_layers)
        if self.num_layers is None and not self.layers:
            raise ConfigurationError("the stack needs num_layers, or layers: a list of at least one layer")
        if self.layers is not None and not self.layers:
            raise ConfigurationError("layers must have at least one entry; omit it if all layers have the stack's own options")


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(TransformerConfig):
    """The options of the stack `encoder_decoder`.

    Args:
        encoder: Another stack, of the same width, to serve as the encoder: a recurrent one, or a Transformer with its own options. All
            other options then describe only the decoder (default: encoder and decoder have the same options).
        num_decoder_layers: Number of decoder layers (default: `num_layers`).
        decoder_layers: The decoder's pattern of layers (default: `layers`).
        cross_mixer: The mixer that reads the encoder's output.
        cross_attention: The score of cross-attention (default: that of self-attention).
        cross_position: The position encoding of cross-attention: `none`, or a kind that rotates or adds a bias by the distance between
            target and source tokens. These are a prior for monotonic alignments (pronunciation, speech), unsuitable for translation.

    Raises:
        ConfigurationError: The decoder's layers are specified twice.
    """

    encoder: StackSpec | None = None
    num_decoder_layers: int | None = None
    decoder_layers: list[LayerSpec] | None = None
    cross_mixer: MixerSpec = "multi_head"
    cross_attention: AttentionSpec | None = None
    cross_position: PositionSpec = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(num_decoder_layers=self.num_decoder_layers)
        if self.encoder is not None and (self.num_decoder_layers is not None or self.decoder_layers is not None):
            raise ConfigurationError(
                "with a separate encoder, num_layers and layers are the decoder's: remove num_decoder_layers and decoder_layers"
            )


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """The options of the stack `recurrent_decoder`.

    Args:
        d_model: Width of inputs, states and outputs D.
        num_layers: Number of layers.
        cell: `rnn`, `lstm` or `gru`.
        dropout: Probability of dropping an element of each layer's input and of the output; states passed on in time have no dropout.
        embedding_norm: Whether layer normalisation precedes the first layer; an encoder and its decoder each have their own.

    Raises:
        ValueError: A width, count or probability is out of range.
    """

    d_model: int
    num_layers: int
    cell: Cell = "lstm"
    dropout: float = 0.0
    embedding_norm: bool = False

    def __post_init__(self) -> None:
        check_positive(d_model=self.d_model, num_layers=self.num_layers)
        check_probability(dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class RecurrentEncoderConfig(RecurrentConfig):
    """The options of the stack `recurrent_encoder`.

    Args:
        bidirectional: Whether every layer of the encoder reads the sequence in both directions, each with half the width.
    """

    bidirectional: bool = True


@dataclass(frozen=True, kw_only=True)
class RecurrentEncoderDecoderConfig(RecurrentEncoderConfig):
    """The options of the stack `recurrent_encoder_decoder`.

    Args:
        num_decoder_layers: Number of decoder layers (default: `num_layers`).
        attention: The score between decoder and encoder, or None for a decoder that receives the source as a single vector.
        num_heads: Number of attention heads. A single head, as in the papers, scores the states themselves; several heads have
            projections, as in the Transformer.
        placement: `after`: the new state of the highest layer attends, and the context is joined with it (Luong). `before`: the previous
            state of the lowest layer attends, and this layer reads the context with its input (Bahdanau). Without attention, the fixed
            context is only the initial state (`after`, Sutskever), or is also read with every input (`before`, Cho et al. 2014).
        input_feeding: With `after`, whether each output is fed into the next step, which tells attention its earlier choices.
        attention_dropout: Probability of dropping an attention weight.
        backend: The implementation of attention (auto, or a name of `attnkit.backends`); results do not depend on it.
    """

    num_decoder_layers: int | None = None
    attention: AttentionSpec | None = "scaled_dot_product"
    num_heads: int = 1
    placement: Placement = "after"
    input_feeding: bool = False
    attention_dropout: float = 0.0
    backend: BackendName = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(num_decoder_layers=self.num_decoder_layers)
        check_probability(attention_dropout=self.attention_dropout)
        if self.attention is None:
            refuse_unread(type(self), "without attention", num_heads=self.num_heads, attention_dropout=self.attention_dropout)


class TransformerOptions(TypedDict, total=False):
    """The fields of `TransformerConfig`."""

    d_model: Required[int]
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    attention: AttentionSpec
    query_key_norm: NormSpec | None
    attention_dropout: float
    bias: bool
    window: int | None
    backend: BackendName
    mixer: MixerSpec
    position: PositionSpec
    norm: NormSpec
    feed_forward: FeedForwardSpec
    residual: ResidualSpec
    dropout: float
    num_layers: int | None
    layers: list[LayerSpec] | None
    shared_positions: bool
    skips: bool
    embedding_norm: bool
    final_norm: bool | None


class EncoderDecoderOptions(TransformerOptions, total=False):
    """The fields of `EncoderDecoderConfig`."""

    encoder: StackSpec | None
    num_decoder_layers: int | None
    decoder_layers: list[LayerSpec] | None
    cross_mixer: MixerSpec
    cross_attention: AttentionSpec | None
    cross_position: PositionSpec


class RecurrentOptions(TypedDict, total=False):
    """The fields of `RecurrentConfig`."""

    d_model: Required[int]
    num_layers: Required[int]
    cell: Cell
    dropout: float
    embedding_norm: bool


class RecurrentEncoderOptions(RecurrentOptions, total=False):
    """The fields of `RecurrentEncoderConfig`."""

    bidirectional: bool


class RecurrentEncoderDecoderOptions(RecurrentEncoderOptions, total=False):
    """The fields of `RecurrentEncoderDecoderConfig`."""

    num_decoder_layers: int | None
    attention: AttentionSpec | None
    num_heads: int
    placement: Placement
    input_feeding: bool
    attention_dropout: float
    backend: BackendName
