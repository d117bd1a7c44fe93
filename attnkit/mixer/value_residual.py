# https://arxiv.org/abs/2410.17897
"""The value residual, which mixes the values of the first layer into those of later ones."""

from typing import Protocol, Self

import torch
from torch import Tensor, nn

from attnkit.registry import ConfigurationError, ResolvedSpec


class HasValues(Protocol):
    """The state of a layer with a value residual."""

    def newest_values(self, count: int) -> tuple[Tensor, Self]:
        """Return the values of the last call's `count` tokens, [B, Hkv, T, Dh], and the state that the next call needs."""


def mixes_values(mixer: ResolvedSpec) -> bool:
    """Whether a mixer has a value residual."""
    return bool(mixer.get("value_residual"))


class ValueResidual(nn.Module):
    r"""Mixes the first layer's values into those of a layer, by a learned factor. The first layer mixes its values with themselves.

    The factor starts at `initial` (the paper's ResFormer: 0.5).

    Equation:
        $$V'_l = (1 - \lambda_l) V_l + \lambda_l V_1$$

    Paper: Zhou et al. 2024, https://arxiv.org/abs/2410.17897

    Raises:
        ConfigurationError: `initial` is outside (0, 1].

    Example:
        >>> ValueResidual(0.25)(torch.zeros(2), torch.ones(2)).detach()
        tensor([0.2500, 0.2500])
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        if not 0 < initial <= 1:
            raise ConfigurationError(
                f"value_residual is the initial factor of the first layer's values and must be in (0, 1], but is {initial}"
            )
        self.initial = initial
        self.factor = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the factor to its initial value."""
        nn.init.constant_(self.factor, self.initial)

    def forward(self, value: Tensor, first: Tensor | None) -> Tensor:
        """Return the mixture of this layer's values and the first layer's, [B, Hkv, T, Dh]; if `first` is None, `value` itself."""
        return torch.lerp(value, value if first is None else first, self.factor.to(value.dtype))
