# https://arxiv.org/abs/2309.00071
"""NTK-aware scaling."""

import torch
from torch import Tensor

from attnkit.position.base import frequencies
from attnkit.position.scaling.base import Scaling
from attnkit.registry import check_positive, rotary_scalings


@rotary_scalings.register("ntk")
class NTK(Scaling):
    r"""NTK-aware scaling: a larger base, which slows the slowest pair by the factor and leaves the fastest one unchanged.

    For a sequence of n tokens, the dynamic form (`dynamic` in transformers) uses the factor s n / L - (s - 1), where L is the length of
    pretraining. Cached keys would then keep the rotation of a shorter sequence, and a row would depend on the longest one in its batch.
    Here the factor is fixed: set that of the length to be read. For n <= L it is 1, which changes nothing.

    Equation:
        $$\omega_i = (b \, s^{r/(r-2)})^{-2i/r}$$
        for pair i of r rotated channels

    Paper: Peng et al. 2024, section 3.1, https://arxiv.org/abs/2309.00071

    Args:
        factor: s, the new length divided by that of pretraining.

    Raises:
        ValueError: `factor` is not positive, or only one pair of channels is rotated.

    Example:
        >>> import torch
        >>> NTK(factor=4.0).frequencies(4, 10_000.0, torch.device("cpu"))
        tensor([1.0000, 0.0025], dtype=torch.float64)
    """

    def __init__(self, *, factor: float) -> None:
        check_positive(factor=factor)
        self.factor = factor

    def frequencies(self, width: int, base: float, device: torch.device) -> Tensor:
        """Return the frequencies [width / 2] in float64."""
        if width < 4:
            raise ValueError(f"NTK-aware scaling needs at least two pairs of rotated channels, but {width} channels are rotated")
        return frequencies(width, base * self.factor ** (width / (width - 2)), device)
