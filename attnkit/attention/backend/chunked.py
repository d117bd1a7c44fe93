# https://arxiv.org/abs/2112.05682
"""Attention computed a few queries at a time."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnkit.attention.backend.base import Backend, Inputs
from attnkit.attention.backend.reference import Reference
from attnkit.attention.base import OPTIONS, Attention
from attnkit.attention.bias import LazyBias
from attnkit.attention.decay import DecayBias
from attnkit.registry import backends
from attnkit.transforms import transformed


@backends.register("chunked")
class Chunked(Backend):
    r"""`reference` a few queries at a time, recomputed in the backward pass, so that each tensor stays within `chunk_elements`.

    Equation:
        $$\mathrm{attention}(Q, K, V) = [\mathrm{attention}(Q_{c}, K, V)]_{c}$$

    Paper: Rabe and Staats 2021, https://arxiv.org/abs/2112.05682

    Example:
        >>> import attnkit
        >>> "chunked" in attnkit.attentions.build("additive", head_dim=4).backends
        True
    """

    rank = 10
    options = OPTIONS

    def suits(self, attention: Attention, inputs: Inputs) -> bool:
        """Return whether all queries at once would exceed `chunk_elements`."""
        return attention.chunk_size(inputs.query, inputs.key) < inputs.query.shape[-2]

    def compute(self, attention: Attention, inputs: Inputs) -> Tensor:
        """Return the attention [B, H, Q, Dv]."""
        outputs: list[Tensor] = []
        first_query = inputs.first_query
        assert not isinstance(inputs.bias, LazyBias | DecayBias)
        for rows, mask, bias in attention.chunks(inputs.query, inputs.key, inputs.mask, inputs.bias):
            part = (rows, inputs.key, inputs.value, mask, bias, inputs.dropout, first_query)
            # torch.func does not support recomputation
            outputs.append(_compute(attention, *part) if transformed() else checkpoint(_compute, attention, *part, use_reentrant=False))
            first_query += rows.shape[-2]
        return torch.cat(outputs, -2)


def _compute(attention: Attention, *inputs: object) -> Tensor:
    return Reference().compute(attention, Inputs(*inputs))  # type: ignore[arg-type]
