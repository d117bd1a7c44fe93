# https://arxiv.org/abs/2003.04887
"""ReZero: a learned gate that starts at zero, without a norm."""

import torch
from torch import Tensor, nn

from attnkit.registry import residuals
from attnkit.residual.base import Residual


@residuals.register("rezero")
class ReZero(Residual):
    r"""ReZero: scales the branch by a learned scalar that starts at zero, so each layer starts as the identity. No norm.

    Equation:
        $$y = x + \alpha \, \mathrm{dropout}(f(x)), \quad \alpha_0 = 0$$

    Paper: Bachlechner et al. 2021, https://arxiv.org/abs/2003.04887

    Example:
        >>> import torch
        >>> residual = ReZero()
        >>> x = torch.ones(1, 1, 2)
        >>> residual.after(x, 3 * residual.before(x)).detach()
        tensor([[[1., 1.]]])
    """

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__(dropout=dropout)
        self.gate = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the gate to zero."""
        nn.init.zeros_(self.gate)

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Scale, then add, [B, T, D]."""
        return x + self.gate * self.drop(output)
