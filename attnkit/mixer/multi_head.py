# https://arxiv.org/abs/1706.03762
"""Multi-head attention around any score."""

from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from einops import rearrange
from torch import Tensor

from attnkit.attention import Attention, FiniteBias
from attnkit.linear import Linear
from attnkit.mixer.base import Mixer, Tokens
from attnkit.mixer.config import MixerConfig
from attnkit.norm import Norm
from attnkit.position import QueryBias
from attnkit.registry import ConfigurationError, attentions, mixers, norms
from attnkit.registry.keywords import keywords_of
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


@mixers.register("multi_head")
class MultiHeadAttention(Mixer[KeyValues]):
    r"""Multi-head attention (MHA), grouped-query (GQA) and multi-query attention (MQA), with any registered score.

    Equation:
        $$\mathrm{MultiHead}(x, m) = W_O \, [\mathrm{attention}_h(\nu_Q(W_{Q,h} x), \nu_K(W_{K,h} m), W_{V,h} m)]_h$$
        where $\nu_Q, \nu_K$ are the norms of `query_key_norm`, each with one scale for all heads, or do nothing without it

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; Ainslie et al. 2023, https://arxiv.org/abs/2305.13245 (GQA); Henry et al.
    2020, https://arxiv.org/abs/2010.04245, and Dehghani et al. 2023, https://arxiv.org/abs/2302.05442 (query-key normalisation)

    Its options are those of the layer: `attention`, `num_heads`, `bias`, ...

    Cost: the projections, and 4 T K d_model operations for T queries and K keys. State: the keys and values of all tokens (`linear`).

    Raises:
        ValueError: `num_kv_heads` does not divide `num_heads`, or the score has no such backend.
        ConfigurationError: An unknown attention, or a wrong argument of it; or `num_heads` is missing.

    Example:
        >>> attention = MultiHeadAttention(d_model=16, num_heads=4, num_kv_heads=2, attention="additive", direction="cross")
        >>> x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
        >>> attention(x, Tokens(), attention.remember(memory, Tokens()))[0].shape
        torch.Size([2, 5, 16])
    """

    directions = frozenset({"causal", "bidirectional", "cross"})
    reads_positions = True
    has_weights = True
    reads_masks = True
    growth = "linear"

    @keywords_of(MixerConfig)
    def __init__(self, config: MixerConfig) -> None:
        super().__init__()
        d_model, num_heads, bias, head_dim = config.d_model, config.num_heads, config.bias, config.head_width
        if num_heads is None or head_dim is None:
            raise ConfigurationError("the mixer 'multi_head' needs num_heads: add it to the stack or to the layer")
        num_kv_heads = num_heads if config.num_kv_heads is None else config.num_kv_heads
        self.is_cross = config.direction == "cross"
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

    def forward(self, x: Tensor, tokens: Tokens, state: KeyValues | None = None) -> tuple[Tensor, KeyValues]:
        """Attend from `x` [B, T, D] to itself and earlier tokens, or to a memory; see `Mixer.forward`."""
        if self.is_cross:
            if state is None:
                raise ValueError("cross-attention needs a memory: pass what `remember` returned as the state")
        else:
            present = self.remember(x, tokens)
            state = present if state is None else state.append(present)
        own, bias = self._heads(self.query(x), self.query_norm), tokens.bias
        query = self.attention.project_query(own)
        query = query if tokens.rotation is None else tokens.rotation.query(query)
        if isinstance(bias, QueryBias):
            bias = FiniteBias(bias(own, partial(self.attention.logits, query, state.key, mask=tokens.mask, projected=True)))
        heads = self.attention(
            query,
            state.key,
            state.value,
            mask=tokens.mask,
            attn_bias=bias,
            projected=True,
            dropout=self.dropout,
            first_query=tokens.first,
            backend=self.backend,
        )
        return self.output(rearrange(heads, "b h q d -> b q (h d)")), state

    def remember(self, memory: Tensor, tokens: Tokens) -> KeyValues:
        """Return the keys and values of the memory [B, K, D], at the positions of `tokens`. They can be cached, and appended to."""
        key = self.attention.project_key(self._heads(self.key(memory), self.key_norm))
        return KeyValues(key if tokens.rotation is None else tokens.rotation.key(key), self._heads(self.value(memory)))

    def _heads(self, x: Tensor, norm: Norm | None = None) -> Tensor:
        heads: Tensor = rearrange(x, "b t (h d) -> b h t d", d=self.head_dim)
        return heads if norm is None else norm(heads).to(heads.dtype)  # under autocast, a norm may compute in fp32
