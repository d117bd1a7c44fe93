# https://arxiv.org/abs/2010.04245
"""Cosine attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.attention.base import InnerProduct
from attnkit.registry import attentions, check_positive


@attentions.register("cosine")
class Cosine(InnerProduct):
    r"""Cosine attention (query-key normalisation) with a learned scale per head, which bounds the logits for any inputs.

    Equation:
        $$\mathrm{score}(q, k) = g_h \frac{q^\top k}{\lVert q \rVert \, \lVert k \rVert}$$

    Paper: Henry et al. 2020, https://arxiv.org/abs/2010.04245

    Args:
        initial_scale: Initial value of g (the paper derives it from the sentence length; 10 suits lengths from 4 to 1,000).

    Raises:
        ValueError: `initial_scale` is not positive.

    Example:
        >>> import torch
        >>> attention = Cosine(head_dim=2, initial_scale=1.0)
        >>> q, k = torch.tensor([[[[9.0, 0.0]]]]), torch.tensor([[[[5.0, 0.0], [0.0, 3.0]]]])
        >>> attention.weights(q, k).detach()  # softmax of cosines 1 and 0
        tensor([[[[0.7311, 0.2689]]]])
    """

    def __init__(self, *, head_dim: int, num_heads: int = 1, num_kv_heads: int | None = None, initial_scale: float = 10.0) -> None:
        super().__init__(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        check_positive(initial_scale=initial_scale)
        self.initial_scale = initial_scale
        self.head_scale = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every head's scale to `initial_scale`."""
        nn.init.constant_(self.head_scale, self.initial_scale)

    def project_query(self, query: Tensor) -> Tensor:
        """Normalise the queries and multiply by their head's scale, [B, H, Q, Dh]."""
        return (self._unit(query) * self.head_scale[:, None, None]).to(query.dtype)

    def project_key(self, key: Tensor) -> Tensor:
        """Normalise the keys, [B, Hkv, K, Dh]."""
        return self._unit(key).to(key.dtype)

    def _unit(self, x: Tensor) -> Tensor:
        """Return vectors of unit length, in fp32 or float64: in fp16, the epsilon would be zero, and zeros would become NaN."""
        return F.normalize(x.to(torch.promote_types(self.head_scale.dtype, torch.float32)), dim=-1)
