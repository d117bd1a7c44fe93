"""The interface of residual connections: how a sublayer reads from and writes to the stream or streams ("Add & Norm")."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from attnkit.dropout import Dropout


@dataclass(frozen=True, kw_only=True)
class Sublayer:
    """The place of a sublayer in its stack."""

    kind: Literal["mixer", "cross_mixer", "feed_forward"] = "mixer"  # the kind of sublayer
    layer: int = 0  # the index of its layer, from 0; for layers with shared parameters, that of the first
    num_layers: int = 1  # number of layers in its stack
    memory_layers: int | None = None  # number of layers in the stack whose output is the memory, or None without a memory

    @property
    def index(self) -> int:
        """The index of the sublayer in its stack, from 0, counting two or three sublayers per layer."""
        kinds = ("mixer", "feed_forward") if self.memory_layers is None else ("mixer", "cross_mixer", "feed_forward")
        return self.layer * len(kinds) + kinds.index(self.kind)


class Residual(nn.Module, ABC):
    """A residual connection around a sublayer f, computed as `after(x, f(before(x)))`.

    A kind with norms declares the argument `make_norm`, which returns a new norm of the stream's width. Without it, the option `norm` of
    a layer has no effect, and is refused.

    Args:
        dropout: Probability of dropping an element of the sublayer's output.

    Attributes:
        needs_final_norm: Whether a stack of such layers ends with a norm, because the stream itself is never normalised.
        reads: The input of the sublayer's `before`: the `stream` as it is; the `layer_input`, which is the stream before the mixer; or the
            `mixer_input`, as normalised by the mixer's residual connection.
        streams: Number of streams that it reads and writes. One stream has the shape [B, T, D], several have [B, T, N, D].
    """

    needs_final_norm: ClassVar[bool] = False
    reads: Literal["stream", "layer_input", "mixer_input"] = "stream"
    streams: int = 1

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)

    def drop(self, output: Tensor) -> Tensor:
        """Return the sublayer's output [B, T, D] after dropout."""
        dropped: Tensor = self.dropout(output)
        return dropped

    def before(self, x: Tensor) -> Tensor:
        """Return the sublayer's input [B, T, D], given the stream [B, T, D] (default: the stream itself)."""
        return x

    @abstractmethod
    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Return the new stream [B, T, D], given the old one and the sublayer's output."""


class NormedResidual(Residual):
    """A residual connection with a norm.

    Args:
        make_norm: Returns a new norm of the stream's width.
        d_model: Width of the stream D.
        sublayer: The place of the sublayer.
    """

    def __init__(self, *, make_norm: Callable[[], nn.Module], dropout: float = 0.0) -> None:
        super().__init__(dropout=dropout)
        self.norm = make_norm()

    def normed(self, x: Tensor) -> Tensor:
        """Return `x` [B, T, D], normalised."""
        y: Tensor = self.norm(x)
        return y
