# https://arxiv.org/abs/2205.14135
"""torch's fused kernels."""

from typing import cast

import torch.nn.functional as F
from torch import Tensor

from attnkit.attention.backend.base import Backend, Inputs
from attnkit.attention.base import HALF, Attention, InnerProduct, repeat_heads
from attnkit.registry import backends

CPU_SHORT_KEYS = 128
"""Up to this many keys, plain matrix products beat torch's fused kernel in half precision on a CPU (6 times faster at 16, equal at 128)."""

NUMBERS = (int, float)


@backends.register("sdpa")
class SDPA(Backend):
    r"""torch's `scaled_dot_product_attention` (FlashAttention and related kernels), for scores that are inner products.

    It reads the projections and `scale`, never `score`, and so refuses a class that overrides `score`. Its dropout draws from torch's
    generators, so `auto` does not choose it when there is dropout.

    Equation:
        $$\mathrm{attention}(q, K, V) = \sum_j \mathrm{softmax}_j(s \, q^\top k_j + b_j) \, v_j$$

    Paper: Dao et al. 2022, https://arxiv.org/abs/2205.14135

    Example:
        >>> import attnkit
        >>> [name for name in attnkit.attentions if "sdpa" in attnkit.attentions.build(name, head_dim=4).backends]
        ['cosine', 'dot_product', 'general', 'scaled_dot_product']
    """

    rank = 20

    def refuses_score(self, attention: Attention) -> str | None:
        """Return the reason unless the score is `InnerProduct.score` with a plain number as its scale."""
        if type(attention).score is not InnerProduct.score or "score" in attention.__dict__:
            overrides = attention.inner_product
            return "it overrides `score`, which fused kernels do not read" if overrides else "its score is not an inner product"
        scale = cast(InnerProduct, attention).scale
        return None if isinstance(scale, NUMBERS) else "its scale is not a plain number, as fused kernels require"

    def suits(self, attention: Attention, inputs: Inputs) -> bool:
        """Return whether there is no dropout, and enough work for the fused kernel to be faster than plain products."""
        query, key = inputs.query, inputs.key
        is_short = query.dtype in HALF and query.device.type == "cpu" and key.shape[-2] <= CPU_SHORT_KEYS
        return inputs.dropout == 0 and not is_short

    def compute(self, attention: Attention, inputs: Inputs) -> Tensor:
        """Return the attention [B, H, Q, Dv]."""
        assert isinstance(attention, InnerProduct)
        query, key, value, mask, bias, dropout, _ = inputs
        grouped = key.shape[1] != query.shape[1]
        symbolic = bias is None and (mask is None or (mask.causal and mask.allowed is None))
        # torch's fused kernels take grouped heads on CUDA without a dense mask; elsewhere they would fall back to slow code
        native = grouped and symbolic and query.is_cuda
        if grouped and not native:
            key, value = repeat_heads(key, query), repeat_heads(value, query)
        if symbolic:
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=mask is not None, dropout_p=dropout, scale=attention.scale, enable_gqa=native
            )
        attn_mask = None if mask is None else mask.dense(query.shape[-2], key.shape[-2], query.device)
        if bias is not None:
            bias = bias.to(query.dtype)
            attn_mask = bias if attn_mask is None else bias.masked_fill(~attn_mask, float("-inf"))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, dropout_p=dropout, scale=attention.scale)
