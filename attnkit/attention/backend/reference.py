# https://arxiv.org/abs/1706.03762
"""The reference: the equation as written."""

import torch
from torch import Tensor

from attnkit.attention.backend.base import Backend, Inputs
from attnkit.attention.base import OPTIONS, Attention, repeat_heads
from attnkit.attention.bias import LazyBias
from attnkit.attention.decay import DecayBias
from attnkit.dropout import dropout as drop
from attnkit.registry import backends

MOST_HEADS = 2**16  # more heads than any layer has, so that each pair of query and head has its own number


@backends.register("reference")
class Reference(Backend):
    r"""The oracle: all logits and weights in fp32 (float64 for float64 inputs), for every score.

    Equation:
        $$\mathrm{attention}(q, K, V) = \sum_j \mathrm{normalizer}_j(\mathrm{score}(q, k_j) + b_j) \, v_j$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Example:
        >>> import attnkit
        >>> "reference" in attnkit.attentions.build("additive", head_dim=4).backends
        True
    """

    rank = 0
    options = OPTIONS

    def compute(self, attention: Attention, inputs: Inputs) -> Tensor:
        """Return the attention [B, H, Q, Dv]."""
        query, key, value, mask, bias, dropout, first_query = inputs
        assert not isinstance(bias, LazyBias | DecayBias)
        weights = attention.row_weights(query, key, mask, bias)
        if dropout > 0:
            heads, queries = (torch.arange(n, device=query.device) for n in query.shape[1:3])
            rows = (first_query + queries) * MOST_HEADS + (attention.first_head + heads)[:, None]  # [H, Q]
            weights = drop(weights, dropout, site=attention.site, rows=rows)
        return weights.to(value.dtype) @ repeat_heads(value, query)
