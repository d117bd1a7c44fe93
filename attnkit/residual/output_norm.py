# https://arxiv.org/abs/2501.00656
"""Norm of the sublayer's output, inside the branch."""

from torch import Tensor

from attnkit.registry import residuals
from attnkit.residual.base import NormedResidual


@residuals.register("output_norm")
class OutputNorm(NormedResidual):
    r"""Norm of the sublayer's output before it is added, as in OLMo 2: the sublayer reads the stream without a norm.

    Equation:
        $$y = x + \mathrm{dropout}(\mathrm{norm}(f(x)))$$

    Paper: Walsh et al. 2025, https://arxiv.org/abs/2501.00656; Liu et al. 2022, https://arxiv.org/abs/2111.09883 (Swin v2)

    Example:
        >>> import torch
        >>> residual = OutputNorm(make_norm=torch.nn.Identity)
        >>> x = torch.ones(1, 1, 2)
        >>> residual.after(x, 3 * residual.before(x))
        tensor([[[4., 4.]]])
    """

    needs_final_norm = True

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Normalise the output, then add, [B, T, D]."""
        return x + self.drop(self.normed(output))
