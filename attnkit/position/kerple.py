# https://arxiv.org/abs/2205.09921
"""KERPLE: kernels of the distance."""

from typing import Literal

import torch
from torch import Tensor, nn

from attnkit.position.base import Position
from attnkit.registry import positions


@positions.register("kerple")
class Kerple(Position):
    r"""KERPLE: logits fall with the logarithm or a power of the distance, with two learned numbers per head; layers share them by default.

    Equation:
        $$b_{h,i,j} = -r_{1,h} \ln(1 + r_{2,h} |i - j|) \quad \text{or} \quad b_{h,i,j} = -r_{1,h} \, |i - j|^{r_{2,h}}, \quad
        r_1, r_2 > 0, \quad r_2 \le 2 \text{ for the power}$$

    Paper: Chi et al. 2022, https://arxiv.org/abs/2205.09921

    The parameters are $\ln r_1$ and $\ln r_2$ (for the power, the logit of $r_2 / 2$), so the ranges hold without the clipping of the
    authors' code. Initialisation, as in that code: for the logarithm, r_1 is uniform in (0, 2) and r_2 in (0, 1); for the power, the
    other way round; neither is below 0.01.

    Args:
        num_heads: Number of query heads H.
        kernel: `log` or `power`.

    Example:
        >>> import torch
        >>> kerple = Kerple(num_heads=1)
        >>> for number in (kerple.strength, kerple.shape):
        ...     _ = nn.init.zeros_(number)  # r_1 = r_2 = 1
        >>> kerple.bias(torch.tensor([[2]]), torch.arange(3)[None])[0, 0].detach()
        tensor([[-1.0986, -0.6931, -0.0000]])
    """

    by_offset = True

    def __init__(self, *, num_heads: int, kernel: Literal["log", "power"] = "log") -> None:
        super().__init__()
        self.kernel = kernel
        self.strength = nn.Parameter(torch.empty(num_heads))
        self.shape = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw r_1 and r_2 from uniform distributions."""
        with torch.no_grad():
            if self.kernel == "log":
                self.strength.uniform_(0.01, 2.0).log_()
                self.shape.uniform_(0.01, 1.0).log_()
            else:
                self.strength.uniform_(0.01, 1.0).log_()
                self.shape.uniform_(0.01 / 2, 1.0).logit_(eps=1e-6)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias [B or 1, H, Q, K]."""
        distance = (query_positions[:, :, None] - key_positions[:, None, :]).abs()[:, None].to(self.dtype)
        strength, shape = (parameter.to(self.dtype)[:, None, None] for parameter in (self.strength, self.shape))
        falls = (1 + shape.exp() * distance).log() if self.kernel == "log" else distance ** (2 * shape.sigmoid())
        return -strength.exp() * falls
