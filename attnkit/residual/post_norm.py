# https://arxiv.org/abs/1706.03762
"""Norm after the addition."""

from torch import Tensor

from attnkit.registry import residuals
from attnkit.residual.base import NormedResidual


@residuals.register("post_norm")
class PostNorm(NormedResidual):
    r"""Norm after the addition, as in the original Transformer and BERT. Deep stacks need a learning-rate warmup.

    Equation:
        $$y = \mathrm{norm}(x + \mathrm{dropout}(f(x)))$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Example:
        >>> import torch
        >>> residual = PostNorm(make_norm=torch.nn.Identity)
        >>> x = torch.ones(1, 1, 2)
        >>> residual.after(x, 3 * residual.before(x))
        tensor([[[4., 4.]]])
    """

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Add, then normalise, [B, T, D]."""
        return self.normed(x + self.drop(output))
