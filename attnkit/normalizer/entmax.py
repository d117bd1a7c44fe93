# https://arxiv.org/abs/1905.05702
"""Entmax and sparsemax."""

import torch
from torch import Tensor

from attnkit.normalizer.base import Normalizer
from attnkit.registry import ConfigurationError, normalizers


@normalizers.register("entmax")
class Entmax(Normalizer):
    r"""Entmax: weights that sum to one and are exactly zero for keys with low logits, computed exactly by sorting.

    Equation:
        $$w_j = \max(0, (\alpha - 1) z_j - \tau)^{1 / (\alpha - 1)}, \quad \tau \text{ such that } \sum_j w_j = 1$$

    Paper: Peters et al. 2019, https://arxiv.org/abs/1905.05702; Martins and Astudillo 2016, https://arxiv.org/abs/1602.02068 (sparsemax)

    Args:
        alpha: 1.5, or 2 for sparsemax, whose weights are more often zero. (Softmax is the limit at 1.)

    Raises:
        ConfigurationError: `alpha` is neither 1.5 nor 2.

    Example:
        >>> Entmax(alpha=2)(torch.tensor([[[[1.0, 0.8, -1.0]]]]))
        tensor([[[[0.6000, 0.4000, 0.0000]]]])
    """

    rows_sum_to_one = True

    def __init__(self, *, alpha: float = 1.5) -> None:
        super().__init__()
        if alpha not in (1.5, 2):
            raise ConfigurationError(f"entmax: alpha must be 1.5 or 2, but is {alpha}; other values have no exact solution by sorting")
        self.alpha = alpha

    def forward(self, logits: Tensor) -> Tensor:
        """Return the weights [B, H, Q, K]."""
        z = (self.alpha - 1) * (logits - logits.detach().amax(-1, keepdim=True))
        z = z.clamp(min=-2)  # tau is at least -1, so clamped weights are zero, and sums over masked keys stay finite
        ordered = z.detach().sort(-1, descending=True).values
        counts = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        support = (ordered > self._threshold(ordered.cumsum(-1), (ordered**2).cumsum(-1), counts)).sum(-1, keepdim=True)
        kept = z >= ordered.gather(-1, (support - 1).clamp(min=0))  # keeps all tied keys; none in a row with NaN
        chosen = z.masked_fill(~kept, 0.0)
        tau = self._threshold(chosen.sum(-1, keepdim=True), (chosen**2).sum(-1, keepdim=True), kept.sum(-1, keepdim=True).to(z.dtype))
        return (z - tau).clamp(min=0) ** (1 / (self.alpha - 1))

    def _threshold(self, total: Tensor, squares: Tensor, count: Tensor) -> Tensor:
        """Return tau for `count` keys, given the sum and the sum of squares of their z."""
        if self.alpha == 2:
            return (total - 1) / count
        mean = total / count
        return mean - ((1 - squares + total * mean) / count).clamp(min=0).sqrt()
