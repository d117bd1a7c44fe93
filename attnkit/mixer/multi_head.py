# https://arxiv.org/abs/1706.03762
"""Multi-head attention with any score."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from attnkit.attention import FiniteBias
from attnkit.linear import Linear, joined
from attnkit.mixer.base import Tokens
from attnkit.mixer.cached_attention import CachedAttention
from attnkit.mixer.config import MultiHeadConfig, Projection
from attnkit.mixer.differential import Differential
from attnkit.mixer.forget_gate import forgetting, log_gates
from attnkit.mixer.heads import gated, head_width, joined_heads
from attnkit.mixer.key_values import KeyValues
from attnkit.mixer.memory_keys import MemoryKeys
from attnkit.mixer.scale_growth import grown
from attnkit.mixer.value_residual import ValueResidual
from attnkit.norm import Norm
from attnkit.position import QueryBias
from attnkit.registry import ConfigurationError, attentions, mixers, norms
from attnkit.registry.keywords import keywords_of

Map = Callable[[Tensor], Tensor]


@mixers.register("multi_head")
class MultiHeadAttention(CachedAttention):
    r"""Multi-head attention (MHA), grouped-query (GQA) and multi-query attention (MQA), with any registered score.

    Here nu are the norms of `query_key_norm` (Henry et al. 2020, https://arxiv.org/abs/2010.04245; over all heads: OLMo2,
    https://arxiv.org/abs/2501.00656), and sigma(W_G x) is the `gate` (Qiu et al. 2025, https://arxiv.org/abs/2505.06708), each only if
    it is set. Grouped queries are from Ainslie et al. 2023, https://arxiv.org/abs/2305.13245. `normalizer`, `scale`, `softcap` and
    `talking_heads` act inside attention (`Attention.configure`); `differential` subtracts pairs of heads (https://arxiv.org/abs/2410.05258),
    `memory_keys` belong to no token (https://arxiv.org/abs/1907.01470), and `value_residual` mixes in the values of the first layer
    (https://arxiv.org/abs/2410.17897). `forget_gate` is that of the Forgetting Transformer (https://arxiv.org/abs/2503.02130). `sub_norm`
    normalises the input of W_O. A causal `window` bounds the cache.

    Equation:
        $$\mathrm{MultiHead}(x, m) = W_O \, (\sigma(W_G x) \odot [\mathrm{attention}_h(\nu_Q(W_{Q,h} x), \nu_K(W_{K,h} m), W_{V,h} m)]_h)$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Cost: the projections, and 4 T K d_model operations for T queries and K keys. State: the keys and values of all tokens (`linear`), or of
    the last `window` - 1 real tokens (`window`). In training, memory grows linearly with the tokens, like that of a projection; the
    backend `reference` also keeps T K weights for each head, which the others recompute.

    Raises:
        ValueError: `num_kv_heads` does not divide `num_heads`, or the score has no such backend.
        ConfigurationError: The attention is unknown or has a wrong argument, or `num_heads` is missing.

    Example:
        >>> import torch
        >>> attention = MultiHeadAttention(d_model=16, num_heads=4, num_kv_heads=2, attention="additive", direction="cross")
        >>> x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
        >>> attention(x, Tokens(), attention.remember(memory, Tokens()))[0].shape
        torch.Size([2, 5, 16])
    """

    reads_positions = frozenset({"rotation", "bias", "query_bias"})
    splits = ("query", "key", "value", "gate", "forget_gate")

    @classmethod
    def options_read(cls, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return the layer options that it reads: `biases` replaces `bias`."""
        return super().options_read(arguments) - ({"bias"} if arguments.get("biases") is not None else set())

    @keywords_of(MultiHeadConfig)
    def __init__(self, config: MultiHeadConfig) -> None:
        super().__init__(direction=config.direction, window=config.window)
        d_model = config.d_model
        num_heads, head_dim = head_width("multi_head", d_model, config.num_heads, config.head_dim)
        num_kv_heads = num_heads if config.num_kv_heads is None else config.num_kv_heads
        value_dim = head_dim if config.value_dim is None else config.value_dim
        self.head_dim, self.value_dim, self.dropout, self.backend = head_dim, value_dim, config.attention_dropout, config.backend
        self.attention = attentions.build(config.attention, head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.attention.num_heads, self.attention.num_kv_heads = num_heads, num_kv_heads  # a score without parameters may not take them
        self.attention.configure(
            normalizer=config.normalizer, scale=config.scale, softcap=config.softcap, talking_heads=config.talking_heads
        )
        self.attention.check_backend(config.backend)
        self.scale_growth, self.scale_growth_length = config.scale_growth, config.scale_growth_length
        if self.scale_growth is not None and not self.attention.inner_product:
            raise ConfigurationError("scale_growth scales the queries, but the score is not an inner product; remove it")

        def linear(projection: Projection, inputs: int, outputs: int) -> Linear:
            return Linear(inputs, outputs, bias=config.has_bias(projection))

        def norm(heads: int) -> Norm | None:
            channels = head_dim if config.query_key_norm_over == "head" else heads * head_dim
            return None if config.query_key_norm is None else norms.build(config.query_key_norm, d_model=channels)

        self.query = linear("query", d_model, num_heads * head_dim)
        self.key = linear("key", d_model, num_kv_heads * head_dim)
        self.value = linear("value", d_model, num_kv_heads * value_dim)
        self.output = linear("output", num_heads * value_dim, d_model)
        self.query_norm, self.key_norm = norm(num_heads), norm(num_kv_heads)
        self.norms_heads, self.clip = config.query_key_norm_over == "head", config.clip
        self.rotates_first = config.query_key_norm_after_rotation
        self.memory_keys = MemoryKeys(config.memory_keys, num_kv_heads, head_dim, value_dim) if config.memory_keys else None
        self.attention.memory_keys = config.memory_keys
        self.value_residual = None if config.value_residual is None else ValueResidual(config.value_residual)
        initial = config.differential
        self.differential = None if initial is None else Differential(num_heads, num_kv_heads, head_dim, value_dim, initial)
        gates = {None: 0, "head": num_heads if initial is None else num_heads // 2, "channel": num_heads * value_dim}[config.gate]
        self.gate, self.gate_activation = linear("gate", d_model, gates) if gates else None, config.gate_activation
        self.forget_gate = Linear(d_model, num_heads) if config.forget_gate else None
        self.sub_norm: Norm | None = None if config.sub_norm is None else norms.build(config.sub_norm, d_model=num_heads * value_dim)

    def forward(self, x: Tensor, tokens: Tokens, state: KeyValues | None = None) -> tuple[Tensor, KeyValues]:
        """Attend from `x` [B, T, D] to itself and the tokens in `state`, or to a memory; see `Mixer.forward`."""
        products = None if self.is_cross else joined(x, self.query, self.key, self.value)
        if products is not None:
            if tokens.rotation is not None and (self.query_norm is None or self.rotates_first):
                # otherwise only the values would keep the whole product alive
                products = (*products[:2], products[2].contiguous())
            tokens = replace(tokens, products=products)
        return super().forward(x, tokens, state)

    def project(self, memory: Tensor, tokens: Tokens) -> tuple[Tensor, ...]:
        """Return the keys [B, Hkv, K, E], values [B, Hkv, K, Dv] and, with a forget gate, its logarithms [B, H, K, 1] of [B, K, D]."""
        keys, values = (self.key(memory), self.value(memory)) if tokens.products is None else tokens.products[1:]
        rotate = None if tokens.rotation is None else tokens.rotation.key
        _, key = self._placed(keys, self.key_norm, rotate, self.attention.project_key)
        value = self._bounded(self._split(values, self.value_dim))
        value = value if self.value_residual is None else self.value_residual(value, tokens.first_value)
        return (key, value) if self.forget_gate is None else (key, value, log_gates(self.forget_gate(memory), tokens.real))

    def attend(self, x: Tensor, tokens: Tokens, memory: KeyValues) -> Tensor:
        """Attend from `x` [B, T, D] to the keys and values of `memory`."""
        rotate = None if tokens.rotation is None else tokens.rotation.query
        queries = self.query(x) if tokens.products is None else tokens.products[0]
        unprojected, query = self._placed(queries, self.query_norm, rotate, self.attention.project_query)
        if self.scale_growth is not None:
            query = grown(query, tokens, growth=self.scale_growth, length=self.scale_growth_length)
        if isinstance(tokens.bias, QueryBias):
            logits = partial(self.attention.logits, query, memory.key, mask=tokens.mask, projected=True)
            tokens = replace(tokens, bias=FiniteBias(tokens.bias(unprojected, logits)))
        if memory.log_gates is not None:
            tokens = forgetting(tokens, memory.log_gates, x.shape[1])
        key, value = memory.key, memory.value
        if self.memory_keys is not None:
            key, value, tokens = self.memory_keys(self.attention, key, value, tokens)
        value = value if self.differential is None else self.differential.pair_values(value)
        heads = self.attended(query, key, value, tokens)
        heads = joined_heads(heads if self.differential is None else self.differential(heads))  # [B, Q, H Dv]
        heads = heads if self.gate is None else gated(heads, self.gate(x), self.gate_activation)
        y: Tensor = self.output(heads if self.sub_norm is None else self.sub_norm(heads).to(heads.dtype))
        return y

    def _placed(self, x: Tensor, norm: nn.Module | None, rotate: Map | None, project: Map) -> tuple[Tensor, Tensor]:
        """Return the heads [B, H, T, Dh] of queries or keys [B, T, H Dh] before and after the score's projection, rotated."""
        if self.rotates_first:
            heads = self._bounded(self._split(x))
            heads = self._normalised(heads if rotate is None else rotate(heads), norm)
            return heads, project(heads)
        heads = self._bounded(self._normalised(self._split(x), norm))
        projected = project(heads)
        return heads, projected if rotate is None else rotate(projected)

    def _normalised(self, heads: Tensor, norm: nn.Module | None) -> Tensor:
        """Normalise heads [B, H, T, Dh]. Under autocast, a norm may compute in fp32."""
        if norm is None:
            return heads
        normed = norm(heads) if self.norms_heads else self._split(norm(joined_heads(heads)))
        return normed.to(heads.dtype)

    def _bounded(self, heads: Tensor) -> Tensor:
        return heads if self.clip is None else heads.clamp(-self.clip, self.clip)

    def _split(self, x: Tensor, width: int | None = None) -> Tensor:
        return x.reshape(*x.shape[:2], -1, width or self.head_dim).transpose(1, 2)
