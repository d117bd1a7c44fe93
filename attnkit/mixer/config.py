"""The options that a layer passes to its mixer."""

import math
from dataclasses import dataclass
from typing import Literal

from attnkit.mixer.base import Direction
from attnkit.mixer.heads import GateActivation
from attnkit.registry import AttentionSpec, BackendName, ConfigurationError, NormalizerSpec, NormSpec, check_positive, require_at_least

Projection = Literal["query", "key", "value", "gate", "output"]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The options of attention. The mixer `multi_head` reads all of them; others read those that their constructor declares.

    Args:
        d_model: Width of the residual stream D.
        num_heads: Number of query heads H. Mixers without heads do not need it.
        num_kv_heads: Number of key and value heads (default: H; 1 is multi-query attention, another divisor of H grouped-query attention).
        head_dim: Width of a head (default: d_model / num_heads); in `latent_attention`, the number of its channels that positions rotate,
            which may be 0.
        attention: The score of self-attention.
        query_key_norm: The norm applied to queries and keys, over the channels of each head, before positions rotate them; it prevents
            the logits from growing (default: none). `multi_head` also has `query_key_norm_over` and `query_key_norm_after_rotation`.
        attention_dropout: Probability of dropping an attention weight.
        bias: Whether the query, key, value and output projections have biases.
        window: Sliding window, at least 2: self-attention reaches tokens less than `window` positions away (default: all tokens). A window
            as long as the sequences changes nothing.
        backend: The implementation of attention (auto, or a name of `attnkit.backends`); results do not depend on it.

    Raises:
        ValueError: `num_heads` does not divide `d_model`, or a width or probability is out of range.
    """

    d_model: int
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    attention: AttentionSpec = "scaled_dot_product"
    query_key_norm: NormSpec | None = None
    attention_dropout: float = 0.0
    bias: bool = True
    window: int | None = None
    backend: BackendName = "auto"

    def __post_init__(self) -> None:
        heads = self.num_heads
        if heads is not None and (heads < 1 or (self.head_dim is None and self.d_model % heads)):
            raise ValueError(f"num_heads ({heads}) must divide d_model ({self.d_model}), or set head_dim")
        check_positive(d_model=self.d_model)
        require_at_least(0, head_dim=self.head_dim)
        if self.window is not None and self.window < 2:
            raise ConfigurationError(
                f"window must be at least 2, but is {self.window}: it includes the token itself, which could then read no other token"
            )
        check_probability(attention_dropout=self.attention_dropout)

    @property
    def head_width(self) -> int | None:
        """The width of a head, or None if there are no heads."""
        return self.head_dim if self.head_dim is not None or self.num_heads is None else self.d_model // self.num_heads


@dataclass(frozen=True, kw_only=True)
class MixerConfig(AttentionConfig):
    """The options of attention, and the tokens that it reads.

    Args:
        direction: Whether the mixer reads earlier tokens (`causal`), all tokens (`bidirectional`) or a memory (`cross`).
    """

    direction: Direction = "causal"


@dataclass(frozen=True, kw_only=True)
class MultiHeadConfig(MixerConfig):
    """The options of the mixer `multi_head`, including those that no other mixer has.

    Args:
        value_dim: Width of a head's values, and of its output (MiMo-V2-Flash: 128, with keys of 192; default: `head_dim`).
        normalizer: The function that turns logits into weights.
        scale: A factor of the score, in addition to the score's own (`dot_product` has none).
        softcap: A bound c on the score, as c tanh(score / c), applied before talking heads, biases and masks (default: none).
        talking_heads: Whether learned matrices mix the scores of all heads, and then the weights of all heads.
        query_key_norm_over: Whether `query_key_norm` normalises the channels of each `head`, with one scale for all heads, or those of
            `all` heads together (OLMo2).
        query_key_norm_after_rotation: Whether positions rotate queries and keys before `query_key_norm` normalises them (HunYuan). If the
            norm treats channels differently, or the attention is `general`, whose matrix then follows the norm, logits depend on absolute
            positions in the row, not only on distances.
        biases: The projections that have biases, in place of `bias` (default: all if `bias`, otherwise none).
        gate: Whether a sigmoid of a projection of the input multiplies each `channel` or each `head` of the output, before the output
            projection (default: no gate).
        gate_activation: The function of the gate, in place of the sigmoid (Laguna: `softplus`).
        forget_gate: Whether a gate f per token and head, a sigmoid of a projection of the input, lets attention forget the tokens before
            it: to each logit, the sum of ln f over the tokens after the key, up to the query, is added. Only for causal attention; it
            can take the place of positions. It always has a bias, whatever `bias` and `biases` say. Fused kernels compute it as extra
            channels of queries and keys; with dropout, a softcap, talking heads, memory keys or another bias, in fp16, and for a score that
            is not an inner product, attention computes a bias of [B, H, T, K] numbers.
        differential: Pairs the heads and subtracts the weights of the second head of each pair, with a learned factor that starts at this
            value (default: no pairs).
        memory_keys: Number of learned keys and values per head that every query may attend to. They belong to no token: positions neither
            rotate nor bias them, and `query_key_norm` and `clip` do not apply to them. A rotated query scores them by its position in the
            row, even in a row of packed documents.
        value_residual: Mixes the values of the first layer into those of this one, with a learned factor that starts at this value
            (default: no mixing). All layers that do so must have the same number and width of key and value heads, and the first has no
            window.
        sub_norm: A norm of all heads together, after the gate, directly before the output projection (Sub-LN of Magneto,
            https://arxiv.org/abs/2210.06423; BitNet b1.58; default: none).
        scale_growth: beta: queries are multiplied by 1 + beta ln(1 + floor(t / L)), where t is their position in their document, counted
            from 0; only for causal attention and scores that are inner products. As with `scale`, position biases are not scaled, not
            even those that read the queries (default: no growth; Ministral 3: 0.1).
            Scalable-Softmax (https://arxiv.org/abs/2501.19399) with a bias is its learned form.
        scale_growth_length: L, the number of positions between changes of the factor (Ministral 3: the context length of pretraining).
        clip: Bound on the absolute values of the elements of queries, keys and values, directly before positions rotate them, so after a
            `query_key_norm` that precedes the rotation (DBRX: 8; default: no bound).

    Raises:
        ValueError: A number is out of range.
        ConfigurationError: An option has no effect.
    """

    value_dim: int | None = None
    normalizer: NormalizerSpec = "softmax"
    scale: float = 1.0
    softcap: float | None = None
    talking_heads: bool = False
    query_key_norm_over: Literal["head", "all"] = "head"
    query_key_norm_after_rotation: bool = False
    biases: list[Projection] | None = None
    gate: Literal["channel", "head"] | None = None
    gate_activation: GateActivation = "sigmoid"
    forget_gate: bool = False
    differential: float | None = None
    memory_keys: int = 0
    value_residual: float | None = None
    sub_norm: NormSpec | None = None
    scale_growth: float | None = None
    scale_growth_length: int = 1
    clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(head_dim=self.head_dim, value_dim=self.value_dim)
        for name in ("query_key_norm_over", "query_key_norm_after_rotation"):
            if self.query_key_norm is None and getattr(self, name) != getattr(MultiHeadConfig, name):
                raise ConfigurationError(f"{name} has no effect without query_key_norm; remove it, or name a norm")
        if self.gate is None and "gate" in (self.biases or ()):
            raise ConfigurationError("biases has 'gate', but there is no gate; remove it, or set gate to channel or head")
        if self.gate is None and self.gate_activation != "sigmoid":
            raise ConfigurationError("gate_activation has no effect without gate; remove it, or set gate to channel or head")
        if self.value_residual is not None and self.direction == "cross":
            raise ConfigurationError(
                "value_residual mixes the values of layers, but a memory is not a layer: remove it from the cross_mixer"
            )
        if self.forget_gate and self.direction != "causal":
            raise ConfigurationError(
                "forget_gate decays the attention to earlier tokens, so it works in causal self-attention only: remove it"
            )
        if self.scale_growth is None and self.scale_growth_length != 1:
            raise ConfigurationError("scale_growth_length has no effect without scale_growth; remove it, or set scale_growth")
        if self.scale_growth is not None and self.direction != "causal":
            raise ConfigurationError("scale_growth counts the tokens before a query, so it works only in causal self-attention: remove it")
        check_positive(scale_growth=self.scale_growth, scale_growth_length=self.scale_growth_length)
        if self.memory_keys < 0:
            raise ValueError(f"memory_keys must not be negative, but is {self.memory_keys}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be positive and finite, but is {self.clip}; omit it for no bound")

    def has_bias(self, projection: Projection) -> bool:
        """Whether a projection has a bias."""
        return self.bias if self.biases is None else projection in self.biases


def check_probability(**numbers: float) -> None:
    """Raise if a number is outside [0, 1]."""
    for name, number in numbers.items():
        if not 0 <= number <= 1:
            raise ValueError(f"{name} must be in [0, 1], but is {number}")
