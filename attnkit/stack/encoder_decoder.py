# https://arxiv.org/abs/1706.03762
"""The encoder-decoder stack."""

from torch import Tensor

from attnkit.layers import Transformer, TransformerState
from attnkit.registry import AttentionSpec, BackendName, FeedForwardSpec, NormSpec, PositionSpec, ResidualSpec, stacks
from attnkit.stack.base import EncoderDecoderStack
from attnkit.state import State


@stacks.register("encoder_decoder")
class EncoderDecoder(EncoderDecoderStack):
    r"""The Transformer: an encoder reads the source, a decoder attends its own past and the encoder's output.

    Encoder and decoder have the same widths; each has positions of its own.

    Equation:
        $$m = \mathrm{encoder}(x), \quad y_t = \mathrm{decoder}(y_{\le t}, m)$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Args:
        d_model: Width of the stream D.
        num_layers: Layers of the encoder, and of the decoder.
        num_decoder_layers: Layers of the decoder, if other than of the encoder.
        num_heads: Query heads.
        num_kv_heads: Key and value heads (default: as many; 1 is multi-query, between is grouped-query attention).
        head_dim: Width of a head (default: d_model / num_heads).
        attention: The score of self-attention.
        cross_attention: The score of cross-attention (default: as `attention`).
        position: Positions, shared by all layers of the encoder, and again of the decoder; cross-attention sees them as far as
            they are part of its inputs.
        cross_position: Positions inside cross-attention: `none`, or a kind that rotates or adds a bias, by the distance between target and
            source token. A prior for monotone alignments (pronunciation, speech), not for translation.
        norm: The norm.
        feed_forward: The position-wise part.
        residual: How each sublayer joins the stream.
        dropout: Probability of dropping an element of the embeddings and of each sublayer's output.
        attention_dropout: Probability of dropping an attention weight.
        bias: Whether the attention projections have biases.
        window: Self-attention reaches fewer than `window` tokens away (default: all).
        final_norm: Whether a norm ends the encoder and the decoder (default: if the residual kind needs one).
        backend: What computes the attention (auto, reference, chunked, sdpa); changes no result.

    Raises:
        ConfigurationError: A spec is wrong, or the position kind is not legal with the attention kind.
        ValueError: A width, count or probability is out of range.

    Example:
        >>> import torch
        >>> stack = EncoderDecoder(d_model=16, num_layers=2, num_heads=4, cross_attention="additive")
        >>> state = stack.encode(torch.randn(2, 7, 16))
        >>> y, state = stack.decode(torch.randn(2, 5, 16), state)
        >>> y.shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_layers: int,
        num_heads: int,
        num_decoder_layers: int | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        attention: AttentionSpec = "scaled_dot_product",
        cross_attention: AttentionSpec | None = None,
        position: PositionSpec = "sinusoidal",
        cross_position: PositionSpec = "none",
        norm: NormSpec = "layer_norm",
        feed_forward: FeedForwardSpec = "mlp",
        residual: ResidualSpec = "pre_norm",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        bias: bool = True,
        window: int | None = None,
        final_norm: bool | None = None,
        backend: BackendName = "auto",
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.encoder = Transformer(
            d_model=d_model,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            attention=attention,
            position=position,
            norm=norm,
            feed_forward=feed_forward,
            residual=residual,
            dropout=dropout,
            attention_dropout=attention_dropout,
            bias=bias,
            window=window,
            final_norm=final_norm,
            backend=backend,
            causal=False,
        )
        self.decoder = Transformer(
            d_model=d_model,
            num_layers=num_layers if num_decoder_layers is None else num_decoder_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            attention=attention,
            position=position,
            norm=norm,
            feed_forward=feed_forward,
            residual=residual,
            dropout=dropout,
            attention_dropout=attention_dropout,
            bias=bias,
            window=window,
            final_norm=final_norm,
            backend=backend,
            cross_attention=attention if cross_attention is None else cross_attention,
            cross_position=cross_position,
            causal=True,
        )

    def encode(self, src: Tensor, *, src_mask: Tensor | None = None) -> TransformerState:
        """Read the embedded source [B, S, D]; see `EncoderDecoderStack.encode`."""
        memory, _ = self.encoder(src, key_mask=src_mask)
        return self.decoder.start(memory, src_mask)

    def decode(self, tgt: Tensor, state: State) -> tuple[Tensor, TransformerState]:
        """Decode the embedded target tokens [B, T, D] that follow `state`."""
        assert isinstance(state, TransformerState)
        y, after = self.decoder(tgt, state=state)
        return y, after
