# https://arxiv.org/abs/2103.17239
"""LayerScale: a learned factor for each channel of the branch, initially small."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnkit.registry import residuals
from attnkit.residual.base import NormedResidual, Sublayer


@residuals.register("layer_scale")
class LayerScale(NormedResidual):
    r"""LayerScale: norm before the sublayer, and a learned factor per channel after it, with which deep stacks start near the identity.

    Equation:
        $$y = x + \mathrm{dropout}(\lambda \odot f(\mathrm{norm}(x)))$$

    Paper: Touvron et al. 2021, https://arxiv.org/abs/2103.17239

    Initialisation: every factor is `initial`.

    Args:
        initial: Initial value of the factors (default, as in the paper: 0.1 up to 18 layers, 1e-5 up to 24, and 1e-6 beyond).

    Example:
        >>> residual = LayerScale(make_norm=torch.nn.Identity, d_model=2)
        >>> x = torch.ones(1, 1, 2)
        >>> residual.after(x, 3 * residual.before(x)).detach()
        tensor([[[1.3000, 1.3000]]])
    """

    needs_final_norm = True

    def __init__(
        self,
        *,
        make_norm: Callable[[], nn.Module],
        dropout: float = 0.0,
        d_model: int,
        sublayer: Sublayer = Sublayer(),  # noqa: B008 (frozen)
        initial: float | None = None,
    ) -> None:
        super().__init__(make_norm=make_norm, dropout=dropout)
        by_depth = 0.1 if sublayer.num_layers <= 18 else 1e-5 if sublayer.num_layers <= 24 else 1e-6
        self.initial = by_depth if initial is None else initial
        self.scale = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every factor to `initial`."""
        nn.init.constant_(self.scale, self.initial)

    def before(self, x: Tensor) -> Tensor:
        """Normalise, [B, T, D]."""
        return self.normed(x)

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Scale, then add, [B, T, D]."""
        return x + self.drop(self.scale * output)
