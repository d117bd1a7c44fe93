"""The interface of residual connections: how a sublayer reads from and adds to the stream ("Add & Norm")."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from attnkit.dropout import Dropout


class Residual(nn.Module, ABC):
    """A residual connection around a sublayer f, computed as `after(x, f(before(x)))`.

    Args:
        make_norm: Returns a new norm of the stream's width; called once for each norm that is needed.
        dropout: Probability of dropping an element of the sublayer's output.

    Attributes:
        needs_final_norm: Whether the stream itself is never normalised, so that a stack of such layers ends with a norm.
    """

    needs_final_norm: ClassVar[bool] = False

    def __init__(self, *, make_norm: Callable[[], nn.Module], dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)

    def drop(self, output: Tensor) -> Tensor:
        """Return the sublayer's output [B, T, D] after dropout."""
        dropped: Tensor = self.dropout(output)
        return dropped

    @abstractmethod
    def before(self, x: Tensor) -> Tensor:
        """Return the sublayer's input [B, T, D], given the stream [B, T, D]."""

    @abstractmethod
    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Return the new stream [B, T, D], given the old one and the sublayer's output."""
