# https://arxiv.org/abs/2002.04745
"""Norm before the sublayer."""

from collections.abc import Callable

from torch import Tensor, nn

from attnkit.registry import check_positive, residuals
from attnkit.residual.base import NormedResidual


@residuals.register("pre_norm")
class PreNorm(NormedResidual):
    r"""Norm before the sublayer, as in GPT-2, T5 and Llama; the stream itself is normalised only once, at the end of the stack.

    Equation:
        $$y = x + \lambda \, \mathrm{dropout}(f(\mathrm{norm}(x)))$$

    Paper: Xiong et al. 2020, https://arxiv.org/abs/2002.04745

    Args:
        scale: Factor lambda of the sublayer's output (Granite; MiniCPM: 1.4 divided by the square root of the number of layers).

    Raises:
        ConfigurationError: `scale` is not positive.

    Example:
        >>> import torch
        >>> residual = PreNorm(make_norm=torch.nn.Identity)
        >>> x = torch.ones(1, 1, 2)
        >>> residual.after(x, 3 * residual.before(x))
        tensor([[[4., 4.]]])
    """

    needs_final_norm = True

    def __init__(self, *, make_norm: Callable[[], nn.Module], dropout: float = 0.0, scale: float = 1.0) -> None:
        super().__init__(make_norm=make_norm, dropout=dropout)
        check_positive(scale=scale)
        self.scale = scale

    def before(self, x: Tensor) -> Tensor:
        """Normalise, [B, T, D]."""
        return self.normed(x)

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Add, [B, T, D]."""
        return x + self.drop(output if self.scale == 1.0 else self.scale * output)
