# https://arxiv.org/abs/2410.06205
"""Proportional rotary positions."""

import torch
from torch import Tensor

from attnkit.position.base import frequencies
from attnkit.position.scaling.base import Scaling
from attnkit.registry import check_positive, rotary_scalings


@rotary_scalings.register("proportional")
class Proportional(Scaling):
    r"""p-RoPE: the slowest pairs do not turn at all, and so compare content over any distance; the others keep their frequencies.

    The option `fraction` of `rotary` instead excludes the last channels, and spreads the frequencies over the rest.

    Equation:
        $$\omega_i = \begin{cases} b^{-2i/r} / s & i < \lfloor p r / 2 \rfloor \\ 0 & \text{otherwise} \end{cases}$$
        for pair i of r rotated channels

    Paper: Barbero et al. 2025, https://arxiv.org/abs/2410.06205

    Args:
        proportion: p, the proportion of pairs that turn.
        factor: s, the factor by which those pairs are slowed down.

    Raises:
        ValueError: `proportion` is outside [0, 1], or `factor` is not positive.

    Example:
        >>> import torch
        >>> Proportional(proportion=0.5).frequencies(4, 10_000.0, torch.device("cpu"))
        tensor([1., 0.], dtype=torch.float64)
    """

    def __init__(self, *, proportion: float, factor: float = 1.0) -> None:
        check_positive(factor=factor)
        if not 0 <= proportion <= 1:
            raise ValueError(f"proportion must be in [0, 1], but is {proportion}")
        self.proportion, self.factor = proportion, factor

    def frequencies(self, width: int, base: float, device: torch.device) -> Tensor:
        """Return the frequencies [width / 2] in float64."""
        turning = torch.arange(width // 2, device=device) < int(self.proportion * width // 2)
        return frequencies(width, base, device) / self.factor * turning
