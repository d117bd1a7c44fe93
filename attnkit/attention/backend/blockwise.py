# https://arxiv.org/abs/2205.14135
"""Inner-product attention in blocks, for biases that depend on offsets."""

from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor

from attnkit.attention.backend import blocks
from attnkit.attention.backend.base import Inputs
from attnkit.attention.backend.blocks import LOG2E, Block, Pairs
from attnkit.attention.backend.online import attend, refuses_inputs
from attnkit.attention.backend.sdpa import FusedBackend
from attnkit.attention.base import Attention, InnerProduct
from attnkit.attention.bias import LazyBias
from attnkit.registry import backends


@backends.register("blockwise")
class Blockwise(FusedBackend):
    r"""Attention in blocks of queries and keys with an online softmax, which the backward pass recomputes, in plain torch.

    A bias that depends only on the offset (ALiBi, relative, KERPLE) is a line of Q + K - 1 numbers per head; each block adds a view of it,
    and its gradient sums over diagonals. Blocks masked by causality, a window or (on a CPU) documents are skipped, as are those whose keys
    are so far away that their weights are zero (ALiBi). Dropout drops the same weights as the reference. `auto` chooses it in fp32 and
    float64 on a CPU, where torch's fused kernels have no gradient for a bias. Second derivatives need `reference`.

    Equation:
        $$\mathrm{attention}(q_i, K, V) = \sum_j \mathrm{softmax}_j(s \, q_i^\top k_j + b_{j - i}) \, v_j$$

    Paper: Dao et al. 2022, https://arxiv.org/abs/2205.14135

    Example:
        >>> import attnkit
        >>> "blockwise" in attnkit.attentions.build("scaled_dot_product", head_dim=4).backends
        True
    """

    rank = 26
    options = frozenset({"scale"})
    reads_lazy_bias: ClassVar[bool] = True

    def refuses_inputs(self, attention: Attention, inputs: Inputs) -> str | None:
        """Return a reason if every weight is dropped, or under torch.func or forward-mode differentiation."""
        return refuses_inputs(inputs)

    def suits(self, attention: Attention, inputs: Inputs) -> bool:
        """Return whether there is a bias by offset, or a symbolic mask with dropout, in full precision on a CPU."""
        has_line = isinstance(inputs.bias, LazyBias) and inputs.bias.by_offset
        has_mask = inputs.dropout > 0 and inputs.bias is None and inputs.mask is not None and inputs.mask.is_symbolic
        is_full = inputs.query.device.type == "cpu" and inputs.query.dtype in (torch.float32, torch.float64)
        return is_full and (has_line or has_mask)

    def compute(self, attention: Attention, inputs: Inputs) -> Tensor:
        """Return the attention [B, H, Q, Dv]."""
        return attend(attention, inputs, "blockwise", scale=cast(InnerProduct, attention).scale * attention.factor)


class InnerProducts(Pairs):
    """Inner products of queries [B H, Q, A] and keys [B H, K, A], times a scale."""

    def __init__(self, query: Tensor, key: Tensor, weight: None, scale: float) -> None:
        super().__init__(query * (scale * LOG2E), key)
        self.scale = scale

    @cached_property
    def norms(self) -> tuple[Tensor, Tensor]:
        """The norms of queries [B H, Q] and keys [B H, K]."""
        return self.query.norm(dim=-1), self.key.norm(dim=-1)

    def upper_bound(self, block: Block) -> Tensor:
        """Return the product of the largest norms, with a margin for rounding."""
        query, key = self.norms
        return block.queries(query).amax() * block.keys(key).amax() * 1.0001

    def logits(self, block: Block, bias: Tensor | None) -> Tensor:
        """Return the inner products."""
        query, key = block.queries(self.query), block.keys(self.key).mT
        return torch.bmm(query, key) if bias is None else torch.baddbmm(bias, query, key)

    def backward(self, block: Block, gradient: Tensor) -> None:
        """Multiply the gradient by keys and by queries."""
        block.queries(self.d_query).baddbmm_(gradient, block.keys(self.key))
        block.keys(self.d_key).baddbmm_(gradient.mT, block.queries(self.query))

    def gradients(self) -> tuple[Tensor, Tensor, None]:
        """Return the sums, scaled."""
        return self.d_query * self.scale, self.d_key / LOG2E, None


blocks.scores["blockwise"] = InnerProducts
