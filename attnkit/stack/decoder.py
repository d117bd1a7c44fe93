# https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
"""The decoder-only stack."""

from torch import Tensor

from attnkit.layers import Transformer, TransformerState
from attnkit.registry import AttentionSpec, BackendName, FeedForwardSpec, NormSpec, PositionSpec, ResidualSpec, stacks
from attnkit.stack.base import DecoderStack
from attnkit.state import State


@stacks.register("decoder")
class Decoder(DecoderStack):
    r"""A Transformer decoder without memory: every token attends itself and earlier ones (GPT, Llama).

    Equation:
        $$x_t^{(l)} = \mathrm{layer}_l(x_{\le t}^{(l-1)}), \quad x^{(0)} = \mathrm{dropout}(x + p)$$

    Paper: Radford et al. 2019, https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf

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
        final_norm: Whether a norm ends the stack (default: if the residual kind needs one).
        backend: What computes the attention (auto, reference, chunked, sdpa); changes no result.

    Raises:
        ConfigurationError: A spec is wrong, or the position kind is not legal with the attention kind.
        ValueError: A width, count or probability is out of range.

    Example:
        >>> import torch
        >>> stack = Decoder(d_model=16, num_layers=2, num_heads=4, num_kv_heads=1, position="rotary")
        >>> x = torch.randn(2, 5, 16)
        >>> start, state = stack(x[:, :4])
        >>> end, state = stack(x[:, 4:], state=state)
        >>> torch.allclose(torch.cat([start, end], 1), stack(x)[0], atol=1e-5)
        True
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
        final_norm: bool | None = None,
        backend: BackendName = "auto",
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.decoder = Transformer(
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
            causal=True,
        )

    def forward(
        self, x: Tensor, *, key_mask: Tensor | None = None, attn_mask: Tensor | None = None, state: State | None = None
    ) -> tuple[Tensor, TransformerState]:
        """Decode `x` [B, T, D]; see `DecoderStack.forward`."""
        assert state is None or isinstance(state, TransformerState)
        y, after = self.decoder(x, key_mask=key_mask, attn_mask=attn_mask, state=state)
        return y, after
