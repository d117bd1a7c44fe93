"""How a sublayer joins the stream: "Add & Norm", as a piece of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from attnkit.dropout import Dropout


class Residual(nn.Module, ABC):
    """The two halves around a sublayer f: `after(x, f(before(x)))`.

    Args:
        make_norm: Makes a norm of the stream's width; called once for each norm that the kind needs.
        dropout: Probability of dropping an element of the sublayer's output.

    Attributes:
        needs_final_norm: Whether the stream is left without a norm, so that a stack of such layers ends with one.
    """

    needs_final_norm: ClassVar[bool] = False

    def __init__(self, *, make_norm: Callable[[], nn.Module], dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)

    def drop(self, output: Tensor) -> Tensor:
        """Return the sublayer's output [B, T, D], some elements dropped in training mode."""
        dropped: Tensor = self.dropout(output)
        return dropped

    @abstractmethod
    def before(self, x: Tensor) -> Tensor:
        """Return the sublayer's input, [B, T, D], from the stream [B, T, D]."""

    @abstractmethod
    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Return the new stream, [B, T, D], from the old one and the sublayer's output."""
