# https://arxiv.org/abs/2407.21783
"""The scaling of Llama 3.1."""

import math

import torch
from torch import Tensor

from attnkit.position.base import frequencies
from attnkit.position.scaling.base import Scaling
from attnkit.registry import check_positive, rotary_scalings


@rotary_scalings.register("llama3")
class Llama3(Scaling):
    r"""Llama 3.1: interpolates pairs that turn less than once in the pretraining length, intermediate ones partly, fast ones not at all.

    Equation:
        $$\omega_i' = \omega_i \, (\gamma_i + (1 - \gamma_i) / s), \quad
        \gamma_i = \mathrm{clip}\Big(\frac{L \omega_i / 2 \pi - l}{h - l}, 0, 1\Big), \quad \omega_i = b^{-2i/r}$$
        for pair i of r rotated channels

    Paper: Llama Team 2024, https://arxiv.org/abs/2407.21783

    Args:
        factor: s, the factor by which slow pairs are slowed down.
        original_length: L, the length of pretraining.
        low_turns: l; pairs with fewer turns than this in L tokens are interpolated (`low_freq_factor`).
        high_turns: h; pairs with more turns than this are unchanged (`high_freq_factor`).

    Raises:
        ValueError: A number is not positive, or `high_turns` does not exceed `low_turns`.

    Example:
        >>> import torch
        >>> Llama3(factor=8.0, original_length=256).frequencies(6, 1000.0, torch.device("cpu"))
        tensor([1.0000, 0.1000, 0.0013], dtype=torch.float64)
    """

    def __init__(self, *, factor: float, original_length: int, low_turns: float = 1.0, high_turns: float = 4.0) -> None:
        check_positive(factor=factor, original_length=original_length, low_turns=low_turns)
        if high_turns <= low_turns:
            raise ValueError(f"high_turns ({high_turns}) must exceed low_turns ({low_turns})")
        self.factor, self.original_length, self.low_turns, self.high_turns = factor, original_length, low_turns, high_turns

    def frequencies(self, width: int, base: float, device: torch.device) -> Tensor:
        """Return the frequencies [width / 2] in float64."""
        plain = frequencies(width, base, device)
        turns = self.original_length * plain / (2 * math.pi)
        kept = ((turns - self.low_turns) / (self.high_turns - self.low_turns)).clamp(0, 1)
        return plain * (kept + (1 - kept) / self.factor)
