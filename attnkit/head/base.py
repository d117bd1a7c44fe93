"""The interface of heads, which map the output of a stack to logits."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnkit.embedding import Embedding
from attnkit.linear import Linear, linear
from attnkit.registry import ConfigurationError


class Head(nn.Module, ABC):
    """A map [..., D] -> [..., V], with its own matrix or an embedding's table.

    Args:
        d_model: Width of the stack D.
        outputs: Number of classes or tokens V.
        tied: The embedding whose table is used, or None. With a tied table, which belongs to the embedding, the head has no matrix.
        bias: Whether each output has a bias, initially zero.

    Attributes:
        projection: The linear map to the logits, or None if the head is tied.
        excluded: The outputs that are never chosen; label smoothing gives them no mass.

    Raises:
        ConfigurationError: The tied embedding has no table.
    """

    excluded: Sequence[int] = ()

    def __init__(self, *, d_model: int, outputs: int, tied: Embedding | None = None, bias: bool = False) -> None:
        super().__init__()
        if tied is not None and tied.weight is None:
            raise ConfigurationError("this embedding has no table of the model's width to share with the output: use tie 'none'")
        self._tied = [] if tied is None else [tied]  # in a list, so that it is not registered twice
        self.projection = Linear(d_model, outputs, bias=bias) if tied is None else None
        self.bias = nn.Parameter(torch.zeros(outputs)) if tied is not None and bias else None

    def project(self, x: Tensor) -> Tensor:
        """Return the product [..., V] of the matrix and `x` [..., D], plus the bias."""
        if self.projection is not None:
            logits: Tensor = self.projection(x)
            return logits
        weight = self._tied[0].weight
        assert weight is not None
        return linear(x, weight, self.bias)

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [..., V] of `x` [..., D]."""
