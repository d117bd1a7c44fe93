# https://arxiv.org/abs/2205.14135
"""torch's fused kernels."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from attnkit.attention.backend.base import Backend, Inputs
from attnkit.attention.base import Attention, InnerProduct, repeat_heads
from attnkit.attention.bias import LazyBias
from attnkit.attention.decay import ALIGNMENT, DecayBias
from attnkit.half import HALF
from attnkit.masks import Mask
from attnkit.normalizer import Exponential
from attnkit.processor import IS_INTEL
from attnkit.registry import backends
from attnkit.transforms import in_forward_mode, traced, transformed

CPU_SHORT_KEYS = 128
"""Up to this many keys, plain matrix products beat torch's fused kernel in half precision on a CPU (6 times faster at 16, equal at 128).
For a single query, as in decoding, they do so with any number of keys. Without gradients, the kernel is faster on Intel processors (8
times for a single query)."""

MAX_COPY = 2**20
"""Up to this many numbers in the keys, attention of a single query in half precision is computed in float32 on CPUs not made by Intel:
plain bf16 products took 1.5 to 3.5 times as long on an EPYC. Larger copies do not fit into the cache and are slower."""

LONG_KEYS = 1024
"""From this many keys, padding narrow values (or keys) to the width of the others pays on a CPU, where the fused kernel needs equal widths:
it is 1.4 to 3 times as fast with gradients, and keeps no weights. Without gradients, it pays at any length (0.9 to 4 times)."""

NUMBERS = (int, float)

FORWARD = "torch's kernels do not support forward-mode differentiation"


class FusedBackend(Backend):
    """A backend for inner products that reads `InnerProduct.scale`, but neither `score` nor the normalizer."""

    def refuses_score(self, attention: Attention) -> str | None:
        """Return a reason unless the score is `InnerProduct.score` with a plain number as its scale, and the normalizer is a softmax."""
        if type(attention).score is not InnerProduct.score or "score" in attention.__dict__:
            overrides = attention.inner_product
            return "it overrides `score`, which fused kernels do not read" if overrides else "its score is not an inner product"
        if not isinstance(attention.normalizer, Exponential) or type(attention.normalizer).forward is not Exponential.forward:
            return "its normalizer is not a softmax"
        is_plain = isinstance(cast(InnerProduct, attention).scale, NUMBERS)
        return None if is_plain else "its scale is not a plain number, as fused kernels require"

    @override
    def readable(self, attention: Attention, inputs: Inputs) -> Inputs:
        if isinstance(inputs.bias, DecayBias) and attention.softcap is None and not attention.as_written:
            scale = cast(InnerProduct, attention).scale * attention.factor
            if (widened := inputs.bias.as_channels(inputs.query, inputs.key, scale)) is not None:
                return inputs._replace(query=widened[0], key=widened[1], bias=None)
        return super().readable(attention, inputs)


@backends.register("sdpa")
class SDPA(FusedBackend):
    r"""torch's `scaled_dot_product_attention` (FlashAttention and related kernels), for inner products, and softmax with or without sinks.

    It reads the projections and `scale`, never `score`, and so refuses a class that overrides `score`. Its dropout draws from torch's
    generators, so `auto` does not choose it when there is dropout. A sink is an extra key with the value zero, whose logit comes from an
    extra channel of queries and keys.

    Equation:
        $$\mathrm{attention}(q, K, V) = \sum_j \mathrm{softmax}_j(s \, q^\top k_j + b_j) \, v_j$$

    Paper: Dao et al. 2022, https://arxiv.org/abs/2205.14135

    Example:
        >>> import attnkit
        >>> [name for name in attnkit.attentions if "sdpa" in attnkit.attentions.build(name, head_dim=4).backends]
        ['cosine', 'dot_product', 'general', 'scaled_dot_product']
    """

    rank = 20
    options = frozenset({"scale", "normalizer"})

    def suits(self, attention: Attention, inputs: Inputs) -> bool:
        """Return whether there is no dropout, and enough work for the fused kernel to be faster than plain products.

        On a CPU, its kernel has no gradient for a bias; torch avoids it, but not where vmap hides that the bias needs one.
        """
        query, key = inputs.query, inputs.key
        if query.is_cpu and isinstance(inputs.bias, Tensor | LazyBias) and torch.is_grad_enabled() and transformed():
            return False
        is_slow = query.dtype in HALF and query.is_cpu and (torch.is_grad_enabled() or not IS_INTEL)
        is_short = query.shape[-2] == 1 or key.shape[-2] <= CPU_SHORT_KEYS
        return inputs.dropout == 0 and (not (is_slow and is_short) or is_copied(query, key))

    def refuses_inputs(self, attention: Attention, inputs: Inputs) -> str | None:
        """Return a reason in forward mode, or if sinks keep a bias from being shifted into the narrower range of the queries' dtype."""
        if in_forward_mode():
            return FORWARD
        bias, dtype = inputs.bias, inputs.query.dtype
        if bias is None or attention.normalizer.rows_sum_to_one or torch.finfo(bias.dtype).max <= torch.finfo(dtype).max:
            return None
        return f"its bias is {bias.dtype} and would overflow in {dtype} together with a sink"

    def compute(self, attention: Attention, inputs: Inputs) -> Tensor:
        """Return the attention [B, H, Q, Dv]."""
        assert isinstance(attention, InnerProduct)
        assert isinstance(attention.normalizer, Exponential)
        scale = attention.scale * attention.factor
        sinks = attention.normalizer.sinks(inputs.query)
        if sinks is None:
            if attention.as_written or not pays_to_pad(inputs):
                return attend(inputs, scale)
            width = max(inputs.key.shape[-1], inputs.value.shape[-1])
            query, key, value = (F.pad(x, (0, width - x.shape[-1])) for x in inputs[:3])
            return attend(inputs._replace(query=query, key=key, value=value), scale)[..., : inputs.value.shape[-1]]
        if inputs.mask is not None and inputs.mask.is_symbolic:
            queries, keys = inputs.query.shape[-2], inputs.key.shape[-2]
            inputs = inputs._replace(mask=inputs.mask.rows(0, queries, queries, keys, inputs.query.device))
        first = int(inputs.mask is not None and inputs.mask.causal)
        output = attend(with_sinks(inputs, sinks / scale, first), scale)
        return output[..., first:, : inputs.value.shape[-1]]


def is_copied(query: Tensor, key: Tensor) -> bool:
    """Return whether attention of this query to these keys is computed from copies in float32."""
    is_half = query.dtype in HALF and query.is_cpu and not IS_INTEL and not torch.is_grad_enabled()
    return is_half and query.shape[-2] == 1 and query.shape[0] * query.shape[1] * key.shape[-2] * key.shape[-1] <= MAX_COPY


def attend(inputs: Inputs, scale: float) -> Tensor:
    """Return the attention [B, H, Q, Dv], computed by torch's function."""
    query, key, value, mask, bias, dropout, _ = inputs
    assert not isinstance(bias, LazyBias | DecayBias)
    if is_copied(query, key):
        copies = inputs._replace(query=query.float(), key=key.float(), value=value.float())
        return attend(copies, scale).to(query.dtype)
    grouped = key.shape[1] != query.shape[1]
    symbolic = bias is None and (mask is None or (mask.causal and mask.allowed is None and not mask.is_symbolic))
    # on CUDA and without a dense mask, torch's fused kernels take grouped heads; elsewhere they would fall back to slow code
    native = query.is_cuda and symbolic and grouped  # in this order: the number of heads may be symbolic, which torch would reject
    if grouped and not native:
        key, value = repeat_heads(key, query), repeat_heads(value, query)
    if symbolic:
        causal = mask is not None
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal, dropout_p=dropout, scale=scale, enable_gqa=native)
    attn_mask = None if mask is None else mask.dense(query.shape[-2], key.shape[-2], query.device)
    if bias is not None:
        bias = bias.to(query.dtype)
        attn_mask = bias if attn_mask is None else bias.masked_fill(~attn_mask, float("-inf"))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, dropout_p=dropout, scale=scale)


def pays_to_pad(inputs: Inputs) -> bool:
    """Return whether keys and values differ in width, and zeros that make them equal cost less than plain products."""
    query, key, value, _, bias, _, _ = inputs
    if key.shape[-1] == value.shape[-1] or not query.is_cpu or query.shape[-2] == 1:
        return False
    is_constant = bias is None or (isinstance(bias, Tensor) and not bias.requires_grad)  # the fused kernel has no gradient for a bias
    if not is_constant or not torch.is_grad_enabled():
        return is_constant
    return not torch.compiler.is_compiling() and not traced() and key.shape[-2] >= LONG_KEYS  # a graph would hold for this side only


def with_sinks(inputs: Inputs, sinks: Tensor, first: int) -> Inputs:
    """Prepend a key whose inner product with each query of head h is `sinks[h]` and whose value is zero.

    Also prepend `first` queries: 1 if a causal mask would otherwise let the first query attend only to the first key.
    """
    query, key, value, mask, bias, _, _ = inputs
    assert not isinstance(bias, LazyBias | DecayBias)
    width = query.shape[-1]
    padding = -(width + 1) % ALIGNMENT
    extra = sinks.to(query.dtype)[:, None, None].expand(*query.shape[:-1], 1)
    query = F.pad(torch.cat([query, extra], -1), (0, padding, first, 0))
    unit = F.one_hot(torch.tensor(width, device=key.device), width + 1 + padding).to(key.dtype)
    key = torch.cat([unit.expand(*key.shape[:2], 1, -1), F.pad(key, (0, 1 + padding))], -2)
    value = F.pad(value, (0, max(0, key.shape[-1] - value.shape[-1]), 1, 0))
    if mask is not None:
        mask = Mask(None if mask.allowed is None else _with_column(mask.allowed, key, first, 1), causal=mask.causal)
    bias = None if bias is None else _with_column(bias, key, first, 0)
    return inputs._replace(query=query, key=key, value=value, mask=mask, bias=bias)


def _with_column(x: Tensor, key: Tensor, first: int, value: int) -> Tensor:
    """Add a first column with `value` to `x`, which broadcasts to [B, H, Q, K], and `first` rows."""
    x = x.expand(*x.shape[:-1], key.shape[-2] - 1)
    return F.pad(x, (1, 0, first if x.shape[-2] > 1 else 0, 0), value=value)
