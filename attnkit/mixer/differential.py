# https://arxiv.org/abs/2410.05258
"""Differential attention: pairs of heads whose weights are subtracted."""

import torch
from torch import Tensor, nn

from attnkit.norm.rms_norm import RMSNorm
from attnkit.registry import ConfigurationError


class Differential(nn.Module):
    r"""Subtracts the outputs of paired heads, which share their values, and normalises the difference.

    Equation:
        $$o_h = (1 - \lambda_0) \, \mathrm{RMSNorm}((w_h - \lambda w_{h + H/2}) \, V_h), \quad
        \lambda = e^{\lambda_{q1} \cdot \lambda_{k1}} - e^{\lambda_{q2} \cdot \lambda_{k2}} + \lambda_0$$

    Paper: Ye et al. 2024, https://arxiv.org/abs/2410.05258

    Initialisation: the vectors of lambda are normal with standard deviation 0.1, as in the paper's code. They have no weight decay.

    The query heads h and h + H/2 form a pair, which reads the concatenated values of the heads g and g + Hkv/2. In the paper, lambda_0
    (`initial`) is 0.8 - 0.6 exp(-0.3 (l - 1)) in layer l = 1, 2, ...

    Example:
        >>> Differential(4, 2, 8, 8, 0.2)(torch.randn(1, 4, 3, 16)).shape
        torch.Size([1, 2, 3, 16])
    """

    undecayed = ("query", "key")  # vectors, although each parameter stores two of them as a matrix

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, value_dim: int, initial: float) -> None:
        super().__init__()
        if num_heads % 2 or num_kv_heads % 2:
            raise ConfigurationError(
                f"differential attention pairs heads: num_heads and num_kv_heads ({num_heads}, {num_kv_heads}) must be even"
            )
        if not 0 <= initial < 1:
            raise ConfigurationError(f"differential is the initial factor of the second head and must be in [0, 1), but is {initial}")
        self.initial = initial
        self.query = nn.Parameter(torch.empty(2, head_dim))
        self.key = nn.Parameter(torch.empty(2, head_dim))
        self.norm = RMSNorm(d_model=2 * value_dim, eps=1e-5)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors of lambda from a normal distribution with standard deviation 0.1."""
        nn.init.normal_(self.query, std=0.1)
        nn.init.normal_(self.key, std=0.1)

    def pair_values(self, value: Tensor) -> Tensor:
        """Concatenate the values [B, Hkv, K, Dv] of the two heads of each pair, for both of them: [B, Hkv, K, 2 Dv]."""
        first, second = value.chunk(2, dim=1)
        return torch.cat([first, second], -1).repeat(1, 2, 1, 1)

    def forward(self, heads: Tensor) -> Tensor:
        """Return the differences [B, H/2, Q, 2 Dv] of the heads' outputs [B, H, Q, 2 Dv]."""
        first, second = (self.query * self.key).sum(-1).exp()
        factor = (first - second + self.initial).to(heads.dtype)
        one, other = heads.chunk(2, dim=1)
        difference: Tensor = self.norm(one - factor * other).to(heads.dtype)
        return (1 - self.initial) * difference
