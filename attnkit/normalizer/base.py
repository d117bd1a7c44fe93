"""The interface of normalizers, which turn the logits of a query into its attention weights."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn


class Normalizer(nn.Module, ABC):
    """A map from logits to weights, applied to each query independently.

    Attributes:
        rows_sum_to_one: Whether the weights of each query sum to one, in which case adding a constant to its logits changes nothing.
    """

    rows_sum_to_one: ClassVar[bool]

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        if "forward" in vars(cls) and not hasattr(cls, "rows_sum_to_one"):
            raise TypeError(f"{cls.__qualname__} must set `rows_sum_to_one`: whether the weights of a query sum to one")

    @abstractmethod
    def forward(self, logits: Tensor) -> Tensor:
        """Return the weights [B, H, Q, K], which are zero for masked keys.

        Args:
            logits: [B, H, Q, K] in fp32 or float64, -inf for masked keys. Each query has at least one key: the caller opens rows without
                keys, and sets their output to zero.
        """


class Exponential(Normalizer):
    """Weights proportional to the exponentials of the logits, which fused kernels can compute with a running sum.

    Fused kernels read `sinks`, never `forward`: a subclass that overrides `forward` runs without them.
    """

    rows_sum_to_one = True

    def sinks(self, heads: Tensor) -> Tensor | None:
        """Return the logit of an additional key whose value is zero, one per head [H], or None for no such key.

        Args:
            heads: Queries or logits [B, H, ...], which determine the device and the heads.
        """
        return None

    def forward(self, logits: Tensor) -> Tensor:
        """Return the weights [B, H, Q, K]."""
        sinks = self.sinks(logits)
        if sinks is None:
            return logits.softmax(-1)
        column = sinks.to(logits.dtype)[:, None, None].expand(*logits.shape[:-1], 1)
        return torch.cat([logits, column], -1).softmax(-1)[..., :-1]
