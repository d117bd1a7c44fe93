"""From what a model reads to vectors."""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Embedding(nn.Module, ABC):
    """A map from inputs to vectors [B, T, D].

    Attributes:
        weight: The table [V, D]; a tied output projection uses it too.
    """

    weight: nn.Parameter

    @abstractmethod
    def forward(self, tokens: Tensor) -> Tensor:
        """Embed `tokens` [B, T], giving [B, T, D]."""
