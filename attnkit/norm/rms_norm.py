# https://arxiv.org/abs/1910.07467
"""Root-mean-square normalisation."""

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from attnkit.norm.base import Norm
from attnkit.registry import norms, require_at_least


@norms.register("rms_norm")
class RMSNorm(nn.RMSNorm, Norm):
    r"""Root-mean-square normalisation: unit mean square over the channels, then a learned scale. The mean is not subtracted.

    Equation:
        $$y = g \odot \frac{x}{\sqrt{\frac{1}{D} \sum_i x_i^2 + \epsilon}}$$

    Paper: Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467

    Args:
        d_model: Number of channels D.
        eps: Added to the mean square.
        learned: Whether to learn the scale g; otherwise it is 1 (nanochat).

    Raises:
        ConfigurationError: `eps` is negative.

    Example:
        >>> import torch
        >>> RMSNorm(d_model=2, eps=0.0)(torch.tensor([1.0, 7.0])).detach()
        tensor([0.2000, 1.4000])
    """

    def __init__(self, *, d_model: int, eps: float = 1e-6, learned: bool = True) -> None:
        require_at_least(0, eps=eps)
        super().__init__(d_model, eps=eps, elementwise_affine=learned)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of `x` [..., D]."""
        weight = None if self.weight is None else self.weight.to(x.dtype)  # fused only if both have the same dtype
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)
