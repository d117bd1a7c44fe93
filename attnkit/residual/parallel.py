# https://arxiv.org/abs/2204.06745
"""Mixer and feed-forward network side by side."""

from collections.abc import Callable

from torch import Tensor, nn

from attnkit.registry import residuals
from attnkit.residual.base import Residual, Sublayer


@residuals.register("parallel")
class Parallel(Residual):
    r"""Mixer and feed-forward network side by side: both read the layer's input, and both outputs are added to it.

    Equation:
        $$y = x + \mathrm{dropout}(\mathrm{mixer}(\mathrm{norm}_1(x))) + \mathrm{dropout}(\mathrm{feed\_forward}(\mathrm{norm}_2(x)))$$
        with one norm for both in GPT-J, Cohere and Phi, and two in GPT-NeoX and Pythia

    Paper: Black et al. 2022, https://arxiv.org/abs/2204.06745; Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311

    Args:
        make_norm: Returns a new norm of the stream's width.
        sublayer: The place of the sublayer.
        shared_norm: Whether both read the output of the same norm.

    Example:
        >>> import torch
        >>> residual = Parallel(make_norm=torch.nn.Identity)
        >>> x = torch.ones(1, 1, 2)
        >>> residual.after(x, 3 * residual.before(x))
        tensor([[[4., 4.]]])
    """

    needs_final_norm = True

    def __init__(
        self,
        *,
        make_norm: Callable[[], nn.Module],
        dropout: float = 0.0,
        sublayer: Sublayer = Sublayer(),  # noqa: B008 (frozen)
        shared_norm: bool = True,
    ) -> None:
        super().__init__(dropout=dropout)
        follows = sublayer.kind == "feed_forward"
        self.reads = ("mixer_input" if shared_norm else "layer_input") if follows else "stream"
        self.norm: nn.Module | None = None if self.reads == "mixer_input" else make_norm()

    def before(self, x: Tensor) -> Tensor:
        """Normalise, [B, T, D], unless `x` is the mixer's normalised input."""
        return x if self.norm is None else self.norm(x)

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Add, [B, T, D]."""
        return x + self.drop(output)
