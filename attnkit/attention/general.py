# https://arxiv.org/abs/1508.04025
"""General (bilinear) attention."""

import torch
from torch import Tensor, nn

from attnkit.attention.base import InnerProduct
from attnkit.registry import attentions


@attentions.register("general")
class General(InnerProduct):
    r"""General attention (Luong's bilinear form), with one matrix per head, applied to the query.

    Equation:
        $$\mathrm{score}(q, k) = q^\top W_h \, k$$

    Paper: Luong et al. 2015, https://arxiv.org/abs/1508.04025

    Initialisation: normal with standard deviation 1 / head_dim, so that unit-variance inputs give logits of unit variance, as in
    `scaled_dot_product` (our choice; the paper draws from U(-0.1, 0.1)).

    Example:
        >>> import torch
        >>> attention = General(head_dim=8, num_heads=2)
        >>> x = torch.randn(3, 2, 5, 8)
        >>> attention(x, x, x).shape
        torch.Size([3, 2, 5, 8])
    """

    def __init__(self, *, head_dim: int, num_heads: int = 1, num_kv_heads: int | None = None) -> None:
        super().__init__(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.weight = nn.Parameter(torch.empty(num_heads, head_dim, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrices from a normal distribution with standard deviation 1 / head_dim."""
        nn.init.normal_(self.weight, std=1 / self.head_dim)

    def project_query(self, query: Tensor) -> Tensor:
        """Return W^T q, [B, H, Q, Dh]."""
        return torch.einsum("bhqd,hde->bhqe", query, self.weight)  # `@` would copy the matrices for each row of the batch
