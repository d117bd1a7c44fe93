# https://arxiv.org/abs/1706.03762
"""Multi-head attention around any score."""

from dataclasses import dataclass
from typing import Self

import torch
from einops import rearrange
from torch import Tensor, nn

from attnkit.attention import Attention, FiniteBias
from attnkit.layers.config import AttentionConfig
from attnkit.linear import Linear
from attnkit.masks import Mask
from attnkit.norm import Norm
from attnkit.position import Rotation
from attnkit.registry import attentions, norms
from attnkit.state import State


@dataclass(frozen=True)
class KeyValues(State):
    """The keys and values of a layer, projected once: its cache.

    Attributes:
        key: [B, Hkv, K, E], projected by the score too, and rotated.
        value: [B, Hkv, K, Dh].
    """

    key: Tensor
    value: Tensor

    def append(self, new: Self) -> "KeyValues":
        """Return these keys and values followed by the new ones."""
        return KeyValues(torch.cat([self.key, new.key], -2), torch.cat([self.value, new.value], -2))


class MultiHeadAttention(nn.Module):
    r"""Multi-head attention (MHA), grouped-query (GQA) and multi-query attention (MQA), with any registered score.

    Equation:
        $$\mathrm{MultiHead}(x, m) = W_O \, [\mathrm{attention}_h(\nu_Q(W_{Q,h} x), \nu_K(W_{K,h} m), W_{V,h} m)]_h$$
        where $\nu_Q, \nu_K$ are the norms of `query_key_norm`, each with one scale for all heads, or do nothing without it

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; Ainslie et al. 2023, https://arxiv.org/abs/2305.13245 (GQA); Henry et al.
    2020, https://arxiv.org/abs/2010.04245, and Dehghani et al. 2023, https://arxiv.org/abs/2302.05442 (query-key normalisation)

    Args:
        config: The options.

    Raises:
        ValueError: `num_kv_heads` does not divide `num_heads`, or the score has no such backend.
        ConfigurationError: An unknown attention, or a wrong argument of it.

    Example:
        >>> attention = MultiHeadAttention(AttentionConfig(d_model=16, num_heads=4, num_kv_heads=2, attention="additive"))
        >>> x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
        >>> attention(x, attention.key_values(memory)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        d_model, num_heads, bias = config.d_model, config.num_heads, config.bias
        head_dim = d_model // num_heads if config.head_dim is None else config.head_dim
        num_kv_heads = num_heads if config.num_kv_heads is None else config.num_kv_heads
        self.head_dim, self.dropout, self.backend = head_dim, config.attention_dropout, config.backend
        self.attention: Attention = attentions.build(config.attention, head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.attention.check_backend(config.backend)
        self.query = Linear(d_model, num_heads * head_dim, bias=bias)
        self.key = Linear(d_model, num_kv_heads * head_dim, bias=bias)
        self.value = Linear(d_model, num_kv_heads * head_dim, bias=bias)
        self.output = Linear(num_heads * head_dim, d_model, bias=bias)
        norm = config.query_key_norm
        self.query_norm: Norm | None = None if norm is None else norms.build(norm, d_model=head_dim)
        self.key_norm: Norm | None = None if norm is None else norms.build(norm, d_model=head_dim)

    def key_values(self, memory: Tensor, *, rotation: Rotation | None = None) -> KeyValues:
        """Return the keys and values of the memory [B, K, D]. They can be cached, and appended to."""
        key = self.attention.project_key(self._heads(self.key(memory), self.key_norm))
        return KeyValues(key if rotation is None else rotation(key), self._heads(self.value(memory)))

    def forward(
        self,
        x: Tensor,
        memory: KeyValues,
        *,
        mask: Mask | None = None,
        attn_bias: FiniteBias | Tensor | None = None,
        rotation: Rotation | None = None,
        first_query: int = 0,
    ) -> Tensor:
        """Attend from `x` [B, Q, D] to `memory`, giving [B, Q, D]; the other arguments are those of `Attention.forward`."""
        query = self.attention.project_query(self._heads(self.query(x), self.query_norm))
        heads = self.attention(
            query if rotation is None else rotation(query),
            memory.key,
            memory.value,
            mask=mask,
            attn_bias=attn_bias,
            projected=True,
            dropout=self.dropout,
            first_query=first_query,
            backend=self.backend,
        )
        y: Tensor = self.output(rearrange(heads, "b h q d -> b q (h d)"))
        return y

    def _heads(self, x: Tensor, norm: Norm | None = None) -> Tensor:
        heads: Tensor = rearrange(x, "b t (h d) -> b h t d", d=self.head_dim)
        return heads if norm is None else norm(heads).to(heads.dtype)  # under autocast, a norm may compute in fp32
