# https://arxiv.org/abs/2306.15595
"""Linear scaling."""

import torch
from torch import Tensor

from attnkit.position.base import frequencies
from attnkit.position.scaling.base import Scaling
from attnkit.registry import check_positive, rotary_scalings


@rotary_scalings.register("linear")
class Linear(Scaling):
    r"""Linear scaling (position interpolation): divides positions by a factor, to keep longer sequences within the angles of pretraining.

    Equation:
        $$\omega_i = b^{-2i/r} / s$$
        for pair i of r rotated channels

    Paper: Chen et al. 2023, https://arxiv.org/abs/2306.15595

    Args:
        factor: s, the new length divided by that of pretraining.

    Raises:
        ValueError: `factor` is not positive.

    Example:
        >>> import torch
        >>> Linear(factor=4.0).frequencies(4, 10_000.0, torch.device("cpu"))
        tensor([0.2500, 0.0025], dtype=torch.float64)
    """

    def __init__(self, *, factor: float) -> None:
        check_positive(factor=factor)
        self.factor = factor

    def frequencies(self, width: int, base: float, device: torch.device) -> Tensor:
        """Return the frequencies [width / 2] in float64."""
        return frequencies(width, base, device) / self.factor
