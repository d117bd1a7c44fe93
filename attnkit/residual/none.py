# https://arxiv.org/abs/2103.03404
"""No residual connection."""

from torch import Tensor

from attnkit.registry import residuals
from attnkit.residual.base import Residual


@residuals.register("none")
class NoResidual(Residual):
    r"""No skip connection and no norm, for ablations. Without skips, pure attention loses rank doubly exponentially with depth.

    Equation:
        $$y = \mathrm{dropout}(f(x))$$

    Paper: Dong et al. 2021, https://arxiv.org/abs/2103.03404

    Example:
        >>> import torch
        >>> residual = NoResidual()
        >>> x = torch.ones(1, 1, 2)
        >>> residual.after(x, 3 * residual.before(x))
        tensor([[[3., 3.]]])
    """

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Return the sublayer's output after dropout, [B, T, D]."""
        return self.drop(output)
