# https://arxiv.org/abs/1810.04805
"""The encoder-only stack."""

from torch import Tensor

from attnkit.layers import Transformer
from attnkit.registry import AttentionSpec, BackendName, FeedForwardSpec, NormSpec, PositionSpec, ResidualSpec, stacks
from attnkit.stack.base import EncoderStack


@stacks.register("encoder")
class Encoder(EncoderStack):
    r"""A Transformer encoder: every token attends every other (BERT, ViT).

    Equation:
        $$x^{(l)} = \mathrm{layer}_l(x^{(l-1)}), \quad x^{(0)} = \mathrm{dropout}(x + p)$$

    Paper: Devlin et al. 2019, https://arxiv.org/abs/1810.04805

    Args:
        d_model: Width of the stream D.
        num_layers: Layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads (default: as many; 1 is multi-query, between is grouped-query attention).
        head_dim: Width of a head (default: d_model / num_heads).
        attention: The score of self-attention.
        position: Positions, shared by all layers.
        norm: The norm.
        feed_forward: The position-wise part.
        residual: How each sublayer joins the stream.
        dropout: Probability of dropping an element of the embeddings and of each sublayer's output.
        attention_dropout: Probability of dropping an attention weight.
        bias: Whether the attention projections have biases.
        window: Self-attention reaches fewer than `window` tokens away (default: all).
        embedding_norm: Whether the sum of embeddings and positions is normalised, before the dropout (BERT).
        final_norm: Whether a norm ends the stack (default: if the residual kind needs one).
        backend: What computes the attention (auto, reference, chunked, sdpa); changes no result.

    Raises:
        ConfigurationError: A spec is wrong, or the position kind is not legal with the attention kind.
        ValueError: A width, count or probability is out of range.

    Example:
        >>> import torch
        >>> stack = Encoder(d_model=16, num_layers=2, num_heads=4, attention="additive")
        >>> stack(torch.randn(2, 5, 16), key_mask=torch.ones(2, 5, dtype=torch.bool)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        attention: AttentionSpec = "scaled_dot_product",
        position: PositionSpec = "sinusoidal",
        norm: NormSpec = "layer_norm",
        feed_forward: FeedForwardSpec = "mlp",
        residual: ResidualSpec = "pre_norm",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        bias: bool = True,
        window: int | None = None,
        embedding_norm: bool = False,
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
            embedding_norm=embedding_norm,
            final_norm=final_norm,
            backend=backend,
            causal=False,
        )

    def forward(self, x: Tensor, *, key_mask: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """Encode `x` [B, T, D]; see `EncoderStack.forward`."""
        y: Tensor = self.encoder(x, key_mask=key_mask, attn_mask=attn_mask)[0]
        return y
