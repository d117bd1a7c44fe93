# https://arxiv.org/abs/1706.03762
"""Scaled dot-product attention."""

from attnkit.attention.base import InnerProduct
from attnkit.registry import attentions


@attentions.register("scaled_dot_product")
class ScaledDotProduct(InnerProduct):
    r"""Scaled dot-product attention, whose logits have unit variance at any head width.

    Equation:
        $$\mathrm{score}(q, k) = \frac{q^\top k}{\sqrt{d_\mathrm{head}}}$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Example:
        >>> import torch
        >>> attention = ScaledDotProduct(head_dim=16, num_heads=2)
        >>> x = torch.randn(3, 2, 5, 16)
        >>> attention(x, x, x, mask=torch.ones(3, 1, 1, 5, dtype=torch.bool)).shape
        torch.Size([3, 2, 5, 16])
    """

    def __init__(self, *, head_dim: int, num_heads: int = 1, num_kv_heads: int | None = None) -> None:
        super().__init__(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.scale = head_dim**-0.5
