# https://arxiv.org/abs/1508.04025
"""Dot-product attention."""

from attnkit.attention.base import InnerProduct
from attnkit.registry import attentions


@attentions.register("dot_product")
class DotProduct(InnerProduct):
    r"""Dot-product attention, unscaled (Luong's "dot").

    Its logits grow with the square root of the head width, so wide heads saturate the softmax; `scaled_dot_product` avoids this.

    Equation:
        $$\mathrm{score}(q, k) = q^\top k$$

    Paper: Luong et al. 2015, https://arxiv.org/abs/1508.04025

    Example:
        >>> import torch
        >>> attention = DotProduct(head_dim=2)
        >>> q, k, v = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 4, 2), torch.arange(8.0).view(1, 1, 4, 2)
        >>> attention(q, k, v)
        tensor([[[[3., 4.]]]])
    """
