# https://arxiv.org/abs/1706.03762
"""Norm after the addition."""

from collections.abc import Callable

from torch import Tensor, nn

from attnkit.registry import residuals
from attnkit.residual.base import Residual


@residuals.register("post_norm")
class PostNorm(Residual):
    r"""Norm after the addition, as in the original Transformer and BERT. Deep stacks need a learning-rate warmup.

    Equation:
        $$y = \mathrm{norm}(x + \mathrm{dropout}(f(x)))$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Args:
        make_norm: Returns a new norm of the stream's width.

    Example:
        >>> import torch
        >>> residual = PostNorm(make_norm=torch.nn.Identity)
        >>> x = torch.ones(1, 1, 2)
        >>> residual.after(x, 3 * residual.before(x))
        tensor([[[4., 4.]]])
    """

    def __init__(self, *, make_norm: Callable[[], nn.Module], dropout: float = 0.0) -> None:
        super().__init__(dropout=dropout)
        self.norm = make_norm()

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Add, then normalise, [B, T, D]."""
        normed: Tensor = self.norm(x + self.drop(output))
        return normed
