# https://arxiv.org/abs/2312.00752
"""The initial step sizes of state-space models."""

import math

import torch
from torch import Tensor

from attnkit.linear import Linear

SMALLEST, LARGEST = 1e-3, 0.1


@torch.no_grad()
def draw_step_bias(bias: Tensor) -> None:
    """Fill a bias so that its softplus, a step size, is log-uniform between 0.001 and 0.1.

    Example:
        >>> draw_step_bias(bias := torch.empty(100))
        >>> 1e-3 <= torch.nn.functional.softplus(bias).min() <= torch.nn.functional.softplus(bias).max() <= 0.1001
        tensor(True)
    """
    bias.uniform_(math.log(SMALLEST), math.log(LARGEST)).exp_()
    bias.add_(torch.log(-torch.expm1(-bias)))  # the inverse of softplus


class StepSize(Linear):
    """The linear map from a few channels I to the logits of step sizes; its weights are uniform within 1 / sqrt(I)."""

    def reset_parameters(self) -> None:
        """Draw the weight, and a bias that gives step sizes between 0.001 and 0.1."""
        bound = self.in_features**-0.5
        torch.nn.init.uniform_(self.weight, -bound, bound)
        draw_step_bias(self.bias)
