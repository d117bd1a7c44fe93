# https://arxiv.org/abs/1607.06450
"""Layer normalisation."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.norm.base import Norm
from attnkit.registry import norms


@norms.register("layer_norm")
class LayerNorm(Norm):
    r"""Layer normalisation: zero mean and unit variance over the channels, then a learned scale and shift.

    Equation:
        $$y = g \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + b$$

    Paper: Ba et al. 2016, https://arxiv.org/abs/1607.06450

    Args:
        d_model: Channels D.
        eps: Added to the variance (BERT: 1e-12).
        bias: Whether to learn a shift b.

    Example:
        >>> import torch
        >>> LayerNorm(d_model=2, eps=0.0)(torch.tensor([3.0, 5.0])).detach()
        tensor([-1.,  1.])
    """

    def __init__(self, *, d_model: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.d_model, self.eps = d_model, eps
        self.weight = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(d_model)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set scale to one and shift to zero."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of `x` [..., D]."""
        return F.layer_norm(x, (self.d_model,), self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Show width and eps."""
        return f"{self.d_model}, eps={self.eps}, bias={self.bias is not None}"
