# https://arxiv.org/abs/2412.13663
"""No norm."""

from torch import Tensor
from typing_extensions import override

from attnkit.norm.base import Norm
from attnkit.registry import norms


@norms.register("none")
class NoNorm(Norm):
    r"""No norm: the channels are unchanged. For a layer whose input is already normalised, such as the first after `embedding_norm`.

    Equation:
        $$\mathrm{none}(x) = x$$

    Paper: Warner et al. 2024, https://arxiv.org/abs/2412.13663 (the first layer)

    Example:
        >>> import torch
        >>> NoNorm()(torch.tensor([3.0, 5.0]))
        tensor([3., 5.])
    """

    @override
    def forward(self, x: Tensor) -> Tensor:
        return x
