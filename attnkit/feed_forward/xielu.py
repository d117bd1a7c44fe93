# https://arxiv.org/abs/2411.13010
"""xIELU, an activation with learned parameters."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BETA, INITIAL = 0.5, 0.8


class XIELU(nn.Module):
    r"""xIELU: quadratic above zero, the integral of an ELU below; two numbers, which all units share, are learned.

    Equation:
        $$\phi(x) = \alpha_p x^2 + \beta x \;\text{for}\; x > 0, \quad \phi(x) = \alpha_n (e^x - 1 - x) + \beta x \;\text{otherwise}$$
        with $\alpha_p = \mathrm{softplus}(a_p)$, $\alpha_n = \beta + \mathrm{softplus}(a_n)$ and $\beta = 0.5$

    Paper: Huang and Schlag 2024, https://arxiv.org/abs/2411.13010

    Initialisation, as in the paper: alpha_p = alpha_n = 0.8.

    Example:
        >>> XIELU()(torch.tensor([-1.0, 0.0, 1.0])).detach()
        tensor([-0.2057,  0.0000,  1.3000])
    """

    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Parameter(torch.empty(1))  # a_p
        self.negative = nn.Parameter(torch.empty(1))  # a_n
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set alpha_p and alpha_n to their initial values."""
        for parameter, softplus in ((self.positive, INITIAL), (self.negative, INITIAL - BETA)):
            with torch.no_grad():
                parameter.fill_(softplus).expm1_().log_()

    def forward(self, x: Tensor) -> Tensor:
        """Return phi of each element."""
        positive, negative = F.softplus(self.positive).to(x.dtype), (BETA + F.softplus(self.negative)).to(x.dtype)
        below = x.clamp(max=0)  # for large x, exp would overflow and its gradient would be NaN
        return torch.where(x > 0, positive * x * x, negative * (torch.expm1(below) - below)) + BETA * x
