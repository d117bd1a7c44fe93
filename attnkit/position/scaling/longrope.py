# https://arxiv.org/abs/2402.13753
"""LongRoPE."""

import math

import torch
from torch import Tensor

from attnkit.position.base import frequencies
from attnkit.position.scaling.base import Scaling
from attnkit.registry import ConfigurationError, check_positive, refuse_unread, rotary_scalings


@rotary_scalings.register("longrope")
class LongRoPE(Scaling):
    r"""LongRoPE: each pair has its own factor, found by a search; queries and keys grow with the extension of the length.

    Published models have two lists: `short_factor` for sequences of at most L tokens, and `long_factor` for longer ones. A switch between
    them would leave cached keys with the wrong rotation, so a composition has a single list: choose it by the length of your sequences.

    Equation:
        $$\omega_i = b^{-2i/r} / \lambda_i, \quad (q', k') = \sqrt{1 + \ln s / \ln L} \; (R q, R k)$$
        for pair i of r rotated channels

    Paper: Ding et al. 2024, https://arxiv.org/abs/2402.13753

    Args:
        factors: lambda, one per pair of rotated channels.
        factor: s, the maximum length divided by that of pretraining.
        original_length: L, the length of pretraining.
        attention_factor: Multiplies rotated queries and keys, in place of `factor` and `original_length` (default: as in the
            equation).

    Raises:
        ConfigurationError: `factor` and `original_length` are missing, or are set in addition to `attention_factor`, which replaces them.
        ValueError: A number is not positive, `factor` is at most 1, `original_length` is 1, or there is not one factor per pair.

    Example:
        >>> import torch
        >>> longrope = LongRoPE(factors=[1.0, 8.0], factor=16.0, original_length=4096)
        >>> longrope.frequencies(4, 10_000.0, torch.device("cpu")), round(longrope.attention_factor, 4)
        (tensor([1.0000, 0.0013], dtype=torch.float64), 1.1547)
    """

    def __init__(
        self,
        *,
        factors: list[float],
        factor: float | None = None,
        original_length: int | None = None,
        attention_factor: float | None = None,
    ) -> None:
        check_positive(**{f"factors[{i}]": f for i, f in enumerate(factors)}, attention_factor=attention_factor)
        self.factors = factors
        if attention_factor is not None:
            refuse_unread(type(self), "with attention_factor", factor=factor, original_length=original_length)
            self.attention_factor = attention_factor
            return
        if factor is None or original_length is None:
            raise ConfigurationError("longrope needs factor and original_length, or attention_factor in their place")
        check_positive(factor=factor, original_length=original_length)
        if factor <= 1:
            raise ValueError(f"factor must be greater than 1, but is {factor}; for no extension, set attention_factor to 1 in its place")
        if original_length < 2:
            raise ValueError("original_length must be at least 2, but is 1")
        self.attention_factor = math.sqrt(1 + math.log(factor) / math.log(original_length))

    def frequencies(self, width: int, base: float, device: torch.device) -> Tensor:
        """Return the frequencies [width / 2] in float64."""
        if len(self.factors) != width // 2:
            raise ValueError(
                f"longrope needs one factor for each of the {width // 2} pairs of rotated channels, but has {len(self.factors)}"
            )
        return frequencies(width, base, device) / torch.tensor(self.factors, dtype=torch.float64, device=device)
