"""The options of the stacks. Each is declared here once, with its type, default and meaning; a stack hands them down in one object.

The `...Options` give type checkers and editors the same fields as keyword arguments, for `attnkit.compose`.
"""

from dataclasses import dataclass
from typing import Literal, Required, TypedDict

from attnkit.registry import AttentionSpec, BackendName, FeedForwardSpec, NormSpec, PositionSpec, ResidualSpec

Cell = Literal["rnn", "lstm", "gru"]
Placement = Literal["after", "before"]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The options of an attention layer.

    Args:
        d_model: Width of the residual stream D.
        num_heads: Number of query heads H.
        num_kv_heads: Number of key and value heads (default: H; 1 is multi-query attention, another divisor of H grouped-query attention).
        head_dim: Width of a head (default: d_model / num_heads).
        attention: The score of self-attention.
        query_key_norm: The norm of queries and keys, over the channels of each head, before positions rotate them; it keeps logits from
            growing (default: none).
        attention_dropout: Probability of dropping an attention weight.
        bias: Whether the query, key, value and output projections have biases.
        backend: The implementation of attention (auto, reference, chunked, sdpa); results do not depend on it.

    Raises:
        ValueError: `num_heads` does not divide `d_model`, or a width or probability is out of range.
    """

    d_model: int
    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    attention: AttentionSpec = "scaled_dot_product"
    query_key_norm: NormSpec | None = None
    attention_dropout: float = 0.0
    bias: bool = True
    backend: BackendName = "auto"

    def __post_init__(self) -> None:
        if self.num_heads < 1 or (self.head_dim is None and self.d_model % self.num_heads):
            raise ValueError(f"num_heads ({self.num_heads}) must divide d_model ({self.d_model}), or head_dim be given")
        _check_positive(d_model=self.d_model, head_dim=self.head_dim)
        _check_probability(attention_dropout=self.attention_dropout)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(AttentionConfig):
    """The options of the stacks `encoder` and `decoder`, and of their layers.

    Args:
        num_layers: Number of layers.
        position: Position encoding, shared by all layers; an encoder and its decoder each have their own.
        norm: The normalisation layer.
        feed_forward: The position-wise feed-forward network.
        residual: How each sublayer joins the residual stream.
        dropout: Probability of dropping an element of the embeddings and of each sublayer's output.
        window: Sliding window: self-attention reaches fewer than `window` tokens away (default: all tokens).
        embedding_norm: Whether the sum of embeddings and positions is normalised, before the dropout (BERT).
        final_norm: Whether a norm follows the last layer (default: if the residual kind needs one).

    Raises:
        ValueError: A width, count or probability is out of range.
    """

    num_layers: int
    position: PositionSpec = "sinusoidal"
    norm: NormSpec = "layer_norm"
    feed_forward: FeedForwardSpec = "mlp"
    residual: ResidualSpec = "pre_norm"
    dropout: float = 0.0
    window: int | None = None
    embedding_norm: bool = False
    final_norm: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(num_layers=self.num_layers, window=self.window)
        _check_probability(dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(TransformerConfig):
    """The options of the stack `encoder_decoder`.

    Args:
        num_decoder_layers: Number of decoder layers (default: `num_layers`).
        cross_attention: The score of cross-attention (default: that of self-attention).
        cross_position: Position encoding inside cross-attention: `none`, or a kind that rotates or adds a bias by the distance between
            target and source token. A prior for monotone alignments (pronunciation, speech), not for translation.

    Raises:
        ValueError: A width, count or probability is out of range.
    """

    num_decoder_layers: int | None = None
    cross_attention: AttentionSpec | None = None
    cross_position: PositionSpec = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(num_decoder_layers=self.num_decoder_layers)


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """The options of the stack `recurrent_decoder`.

    Args:
        d_model: Width of inputs, states and outputs D.
        num_layers: Number of layers.
        cell: `rnn`, `lstm` or `gru`.
        dropout: Probability of dropping an element of each layer's input and of the output; never of a state passed on in time.

    Raises:
        ValueError: A width, count or probability is out of range.
    """

    d_model: int
    num_layers: int
    cell: Cell = "lstm"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _check_positive(d_model=self.d_model, num_layers=self.num_layers)
        _check_probability(dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class RecurrentEncoderConfig(RecurrentConfig):
    """The options of the stack `recurrent_encoder`.

    Args:
        bidirectional: Whether every layer of the encoder reads the sequence in both directions, each with half of the width.
    """

    bidirectional: bool = True


@dataclass(frozen=True, kw_only=True)
class RecurrentEncoderDecoderConfig(RecurrentEncoderConfig):
    """The options of the stack `recurrent_encoder_decoder`.

    Args:
        num_decoder_layers: Number of decoder layers (default: `num_layers`).
        attention: The score between decoder and encoder, or None: the decoder knows the source as one vector.
        num_heads: Number of attention heads. One head, as in the papers, scores the states themselves; several have projections, as in
            the Transformer.
        placement: Whether attention comes `after` or `before` the cell.
        input_feeding: With `after`: whether each output is fed into the next step, so that attention knows its earlier choices.
        attention_dropout: Probability of dropping an attention weight.
        backend: The implementation of attention (auto, reference, chunked, sdpa); results do not depend on it.

    Raises:
        ValueError: A width, count or probability is out of range.
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
        _check_positive(num_decoder_layers=self.num_decoder_layers)
        _check_probability(attention_dropout=self.attention_dropout)


class TransformerOptions(TypedDict, total=False):
    """The fields of `TransformerConfig`."""

    d_model: Required[int]
    num_heads: Required[int]
    num_kv_heads: int | None
    head_dim: int | None
    attention: AttentionSpec
    query_key_norm: NormSpec | None
    attention_dropout: float
    bias: bool
    backend: BackendName
    num_layers: Required[int]
    position: PositionSpec
    norm: NormSpec
    feed_forward: FeedForwardSpec
    residual: ResidualSpec
    dropout: float
    window: int | None
    embedding_norm: bool
    final_norm: bool | None


class EncoderDecoderOptions(TransformerOptions, total=False):
    """The fields of `EncoderDecoderConfig`."""

    num_decoder_layers: int | None
    cross_attention: AttentionSpec | None
    cross_position: PositionSpec


class RecurrentOptions(TypedDict, total=False):
    """The fields of `RecurrentConfig`."""

    d_model: Required[int]
    num_layers: Required[int]
    cell: Cell
    dropout: float


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


def _check_positive(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} must be positive, but is {number}")


def _check_probability(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 <= number <= 1:
            raise ValueError(f"{name} must be in [0, 1], but is {number}")
