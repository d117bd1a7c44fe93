# https://arxiv.org/abs/2503.10622
"""Dynamic tanh: a replacement for a norm."""

import torch
from torch import Tensor, nn

from attnkit.norm.base import Norm
from attnkit.registry import norms


@norms.register("dynamic_tanh")
class DynamicTanh(Norm):
    r"""Dynamic tanh (DyT): squashes each channel instead of normalising, then applies a learned scale and shift. It needs no statistics.

    Equation:
        $$y = g \odot \tanh(\alpha x) + b$$

    Paper: Zhu et al. 2025, https://arxiv.org/abs/2503.10622

    Args:
        d_model: Number of channels D.
        alpha: Initial value of the learned scalar alpha (the paper: 0.5; for Llama, from 0.2 to 1 depending on the width).

    Example:
        >>> DynamicTanh(d_model=2)(torch.tensor([0.0, 100.0])).detach()
        tensor([0., 1.])
    """

    def __init__(self, *, d_model: int, alpha: float = 0.5) -> None:
        super().__init__()
        self.start = alpha
        self.alpha = nn.Parameter(torch.empty(1))
        self.weight = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the scalar to its initial value, the scale to one, and the shift to zero."""
        nn.init.constant_(self.alpha, self.start)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Squash `x` [..., D]."""
        return self.weight * torch.tanh(self.alpha * x) + self.bias
