# https://arxiv.org/abs/2309.00071
"""YaRN."""

import math

import torch
from torch import Tensor

from attnkit.position.base import frequencies
from attnkit.position.scaling.base import Scaling
from attnkit.registry import check_positive, rotary_scalings


@rotary_scalings.register("yarn")
class YaRN(Scaling):
    r"""YaRN: interpolates slow pairs fully, intermediate ones partly and fast ones not at all; queries and keys grow with the factor.

    The pair d(n) makes n turns within the length L of pretraining.

    Equation:
        $$\omega_i = b^{-2i/r} (1 - \gamma_i + \gamma_i / s), \quad
        \gamma_i = \mathrm{clip}\Big(\frac{i - l}{h - l}, 0, 1\Big), \quad (q', k') = (1 + 0.1 \ln s) (R q, R k), \quad
        l = \max(\lfloor d(\beta) \rfloor, 0), \quad h = \min(\lceil d(\alpha) \rceil, r - 1), \quad
        d(n) = \frac{r \ln(L / 2 \pi n)}{2 \ln b}$$
        for pair i of r rotated channels

    Paper: Peng et al. 2024, https://arxiv.org/abs/2309.00071

    Args:
        factor: s, the new length divided by that of pretraining.
        original_length: L, the length of pretraining.
        beta_fast: beta; pairs with more turns than this are unchanged.
        beta_slow: alpha; pairs with fewer turns than this are interpolated.
        attention_factor: Multiplies rotated queries and keys (default: 1 + 0.1 ln s, or 1 for s <= 1).
        truncate: Whether to round the ends of the ramp outwards to whole pairs (gpt-oss: false).

    Raises:
        ValueError: A number is not positive, or `beta_fast` does not exceed `beta_slow`.

    Example:
        >>> import torch
        >>> yarn = YaRN(factor=4.0, original_length=4096)
        >>> yarn.frequencies(4, 10_000.0, torch.device("cpu")), round(yarn.attention_factor, 4)
        (tensor([1.0000, 0.0063], dtype=torch.float64), 1.1386)
    """

    def __init__(
        self,
        *,
        factor: float,
        original_length: int,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        attention_factor: float | None = None,
        truncate: bool = True,
    ) -> None:
        check_positive(factor=factor, original_length=original_length, beta_slow=beta_slow, attention_factor=attention_factor)
        if beta_fast <= beta_slow:
            raise ValueError(f"beta_fast ({beta_fast}) must exceed beta_slow ({beta_slow})")
        self.factor, self.original_length, self.beta_fast, self.beta_slow = factor, original_length, beta_fast, beta_slow
        self.attention_factor = 1 + 0.1 * math.log(max(factor, 1.0)) if attention_factor is None else attention_factor
        self.truncate = truncate

    def frequencies(self, width: int, base: float, device: torch.device) -> Tensor:
        """Return the frequencies [width / 2] in float64."""
        first, last = (self._pair(turns, width, base) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        last += 0.001 if first == last else 0  # as in the paper's code
        pairs = torch.arange(width // 2, dtype=torch.float64, device=device)
        interpolated = ((pairs - first) / (last - first)).clamp(0, 1)
        return frequencies(width, base, device) * (1 - interpolated + interpolated / self.factor)

    def _pair(self, turns: float, width: int, base: float) -> float:
        return width * math.log(self.original_length / (2 * math.pi * turns)) / (2 * math.log(base))
