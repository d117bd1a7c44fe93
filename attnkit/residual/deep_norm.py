# https://arxiv.org/abs/2203.00555
"""DeepNorm: post-norm for very deep stacks."""

from collections.abc import Callable

from torch import Tensor, nn

from attnkit.registry import residuals
from attnkit.residual.base import NormedResidual, Sublayer


@residuals.register("deep_norm")
class DeepNorm(NormedResidual):
    r"""DeepNorm: norm after the addition, with a stream that outweighs the branch by a factor that grows with depth.

    Equation:
        $$y = \mathrm{norm}(\alpha x + \mathrm{dropout}(f(x)))$$
        with $\alpha = (2N)^{1/4}$ in a stack of N layers, or $(3M)^{1/4}$ in a decoder of M layers that reads a memory

    The paper also multiplies the initial weights of values, outputs and feed-forward networks by $\beta$: choose the initialisation
    `deep_norm` for this. (For an encoder that a decoder reads, its $\alpha$ is $0.81 (N^4 M)^{1/16}$. Ours does not depend on the decoder:
    it is 1.86 instead of 1.42 for N = M = 6.)

    Paper: Wang et al. 2022, https://arxiv.org/abs/2203.00555

    Example:
        >>> import torch
        >>> residual = DeepNorm(make_norm=torch.nn.Identity, sublayer=Sublayer(num_layers=8))
        >>> x = torch.ones(1, 1, 2)
        >>> residual.after(x, 3 * residual.before(x))
        tensor([[[5., 5.]]])
    """

    def __init__(
        self,
        *,
        make_norm: Callable[[], nn.Module],
        dropout: float = 0.0,
        sublayer: Sublayer = Sublayer(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(make_norm=make_norm, dropout=dropout)
        self.alpha = ((2 if sublayer.memory_layers is None else 3) * sublayer.num_layers) ** 0.25

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Add to the scaled stream, then normalise, [B, T, D]."""
        return self.normed(self.alpha * x + self.drop(output))
