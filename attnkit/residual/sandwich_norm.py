# https://arxiv.org/abs/2105.13290
"""Norms before and after the sublayer."""

from collections.abc import Callable

from torch import Tensor, nn

from attnkit.registry import residuals
from attnkit.residual.base import Residual


@residuals.register("sandwich_norm")
class SandwichNorm(Residual):
    r"""Norms before and after the sublayer, inside the branch, as in CogView and Gemma 2: they bound what is added to the stream.

    Equation:
        $$y = x + \mathrm{dropout}(\mathrm{norm}_2(f(\mathrm{norm}_1(x))))$$

    Paper: Ding et al. 2021, https://arxiv.org/abs/2105.13290

    Args:
        make_norm: Returns a new norm of the stream's width; called twice.

    Example:
        >>> import torch
        >>> residual = SandwichNorm(make_norm=torch.nn.Identity)
        >>> x = torch.ones(1, 1, 2)
        >>> residual.after(x, 3 * residual.before(x))
        tensor([[[4., 4.]]])
    """

    needs_final_norm = True

    def __init__(self, *, make_norm: Callable[[], nn.Module], dropout: float = 0.0) -> None:
        super().__init__(dropout=dropout)
        self.input_norm = make_norm()
        self.output_norm = make_norm()

    def before(self, x: Tensor) -> Tensor:
        """Normalise, [B, T, D]."""
        normed: Tensor = self.input_norm(x)
        return normed

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Normalise the output, then add, [B, T, D]."""
        return x + self.drop(self.output_norm(output))
