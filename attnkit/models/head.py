"""The output projection, and which tables it may share."""

from typing import Literal

from torch import Tensor, nn

from attnkit.embedding import Embedding
from attnkit.linear import Linear
from attnkit.registry import ConfigurationError

Tie = Literal["none", "output", "all"]


class Head(nn.Module):
    """From the stack's output to logits: a map of its own, or the transposed embedding table.

    Args:
        d_model: Width of the stack D.
        outputs: Classes or tokens V.
        tied: The embedding whose table is used, or None. It stays the embedding's: the head owns no parameter then.
    """

    def __init__(self, *, d_model: int, outputs: int, tied: Embedding | None = None) -> None:
        super().__init__()
        self._tied = [] if tied is None else [tied]  # in a list, so that it is not registered a second time
        self.projection = Linear(d_model, outputs, bias=False) if tied is None else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, T, V] of `x` [B, T, D]."""
        if self.projection is not None:
            logits: Tensor = self.projection(x)
            return logits
        return nn.functional.linear(x, self._tied[0].weight)


def check_tie(tie: str, allowed: tuple[str, ...]) -> None:
    """Raise unless `tie` is one of the allowed values."""
    if tie not in allowed:
        raise ConfigurationError(f"tie must be one of {', '.join(allowed)}, but is {tie!r}")
