"""The interface of norms, which normalise over the channels of each token."""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Norm(nn.Module, ABC):
    """A map [..., D] -> [..., D], applied to each token independently."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of `x` [..., D]."""
