# https://arxiv.org/abs/2501.00656
"""Norm of the sublayer's output, inside the branch."""

from collections.abc import Callable

from torch import Tensor, nn

from attnkit.registry import residuals
from attnkit.residual.base import Residual


@residuals.register("output_norm")
class OutputNorm(Residual):
    r"""Norm of the sublayer's output before it is added, as in OLMo 2: the sublayer reads the stream without a norm.

    Equation:
        $$y = x + \mathrm{dropout}(\mathrm{norm}(f(x)))$$

    Paper: Walsh et al. 2025, https://arxiv.org/abs/2501.00656; Liu et al. 2022, https://arxiv.org/abs/2111.09883 (Swin v2)

    Args:
        make_norm: Returns a new norm of the stream's width.

    Example:
        >>> import torch
        >>> residual = OutputNorm(make_norm=torch.nn.Identity)
        >>> x = torch.ones(1, 1, 2)
        >>> residual.after(x, 3 * residual.before(x))
        tensor([[[4., 4.]]])
    """

    needs_final_norm = True

    def __init__(self, *, make_norm: Callable[[], nn.Module], dropout: float = 0.0) -> None:
        super().__init__(dropout=dropout)
        self.norm = make_norm()

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Normalise the output, then add, [B, T, D]."""
        return x + self.drop(self.norm(output))
