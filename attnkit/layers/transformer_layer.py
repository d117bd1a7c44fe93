# https://arxiv.org/abs/1706.03762
"""One layer of a Transformer: self-attention, optional cross-attention, feed-forward."""

from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from attnkit.attention import FiniteBias
from attnkit.feed_forward import FeedForward
from attnkit.layers.config import TransformerConfig
from attnkit.layers.multi_head import KeyValues, MultiHeadAttention
from attnkit.masks import Mask
from attnkit.position import Rotation
from attnkit.registry import AttentionSpec, feed_forwards, norms, residuals
from attnkit.residual import Residual


class TransformerLayer(nn.Module):
    """A layer of an encoder, of a decoder-only stack (the same, with a causal mask), or of a decoder with cross-attention.

    Args:
        config: The options.
        cross_attention: The score of cross-attention, or None for a layer without memory.

    Example:
        >>> import torch
        >>> layer = TransformerLayer(TransformerConfig(d_model=8, num_layers=1, num_heads=2))
        >>> y, cache = layer(torch.randn(1, 3, 8))
        >>> y.shape, cache.key.shape
        (torch.Size([1, 3, 8]), torch.Size([1, 2, 3, 4]))
    """

    def __init__(self, config: TransformerConfig, *, cross_attention: AttentionSpec | None = None) -> None:
        super().__init__()
        make_norm = partial(norms.build, config.norm, d_model=config.d_model)
        join = partial(residuals.build, config.residual, make_norm=make_norm, dropout=config.dropout)
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_residual: Residual = join()
        self.cross_attention = None if cross_attention is None else MultiHeadAttention(replace(config, attention=cross_attention))
        self.cross_attention_residual: Residual | None = None if cross_attention is None else join()
        self.feed_forward: FeedForward = feed_forwards.build(config.feed_forward, d_model=config.d_model)
        self.feed_forward_residual: Residual = join()

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | None = None,
        attn_bias: FiniteBias | Tensor | None = None,
        rotation: Rotation | None = None,
        past: KeyValues | None = None,
        memory: KeyValues | None = None,
        memory_mask: Mask | None = None,
        memory_bias: FiniteBias | Tensor | None = None,
        memory_rotation: Rotation | None = None,
    ) -> tuple[Tensor, KeyValues]:
        """Run the layer.

        Args:
            x: The stream [B, T, D].
            mask: Of self-attention, broadcasts to [B, H, T, past + T].
            attn_bias: Of self-attention, broadcasts to [B, H, T, past + T].
            rotation: Of self-attention, at the positions of `x`.
            past: The keys and values of earlier tokens.
            memory: The keys and values of cross-attention, from `project_memory`.
            memory_mask: Of cross-attention, broadcasts to [B, H, T, S].
            memory_bias: Of cross-attention, broadcasts to [B, H, T, S].
            memory_rotation: Of cross-attention, at the positions of `x`.

        Returns:
            The stream [B, T, D], and the keys and values of earlier and present tokens.
        """
        h = self.self_attention_residual.before(x)
        present = self.self_attention.key_values(h, rotation=rotation)
        if past is not None:
            present = past.append(present)
        x = self.self_attention_residual.after(x, self.self_attention(h, present, mask=mask, attn_bias=attn_bias, rotation=rotation))
        if self.cross_attention is not None and self.cross_attention_residual is not None:
            if memory is None:
                raise ValueError("a layer with cross-attention needs memory: pass layer.project_memory(encoder_output)")
            h = self.cross_attention_residual.before(x)
            x = self.cross_attention_residual.after(
                x, self.cross_attention(h, memory, mask=memory_mask, attn_bias=memory_bias, rotation=memory_rotation)
            )
        h = self.feed_forward_residual.before(x)
        return self.feed_forward_residual.after(x, self.feed_forward(h)), present

    def project_memory(self, memory: Tensor, *, rotation: Rotation | None = None) -> KeyValues:
        """Project the encoder's output [B, S, D] for cross-attention, rotated at its own positions: once for all steps."""
        if self.cross_attention is None:
            raise ValueError("this layer has no cross-attention: pass cross_attention=...")
        return self.cross_attention.key_values(memory, rotation=rotation)
