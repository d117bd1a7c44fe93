"""The output map, the layers that may precede it, and the tables it may share."""

from typing import Literal

import torch
from torch import Tensor, nn

from attnkit.embedding import Embedding
from attnkit.linear import Linear
from attnkit.registry import ConfigurationError, NormSpec, norms

Tie = Literal["none", "output", "all"]


class Head(nn.Module):
    """From the stack's output to logits: a separate map, or the transposed embedding table.

    Args:
        d_model: Width of the stack D.
        outputs: Classes or tokens V.
        tied: The embedding whose table is used, or None. It stays the embedding's: the head owns no matrix then.
        bias: Whether each output has a bias, zero at first.

    Raises:
        ConfigurationError: The embedding to tie to has no table.
    """

    def __init__(self, *, d_model: int, outputs: int, tied: Embedding | None = None, bias: bool = False) -> None:
        super().__init__()
        if tied is not None and tied.weight is None:
            raise ConfigurationError("this embedding has no table of the model's width for the output to share: use tie 'none'")
        self._tied = [] if tied is None else [tied]  # in a list, so that it is not registered a second time
        self.projection = Linear(d_model, outputs, bias=bias) if tied is None else None
        self.bias = nn.Parameter(torch.zeros(outputs)) if tied is not None and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [..., V] of `x` [..., D]."""
        if self.projection is not None:
            logits: Tensor = self.projection(x)
            return logits
        weight = self._tied[0].weight
        assert weight is not None
        return nn.functional.linear(x, weight, self.bias)


class HeadTransform(nn.Module):
    r"""The layer before BERT's output map: $\mathrm{norm}(\mathrm{GELU}(W x + b))$.

    Paper: Devlin et al. 2019, https://arxiv.org/abs/1810.04805 (in their code)

    Args:
        d_model: Width D.
        norm: The norm.
    """

    def __init__(self, *, d_model: int, norm: NormSpec) -> None:
        super().__init__()
        self.dense = Linear(d_model, d_model)
        self.norm = norms.build(norm, d_model=d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `x` [..., D]."""
        y: Tensor = self.norm(nn.functional.gelu(self.dense(x)))
        return y


class Pooler(nn.Module):
    r"""The layer before BERT's classes: $\tanh(W x + b)$.

    Paper: Devlin et al. 2019, https://arxiv.org/abs/1810.04805 (in their code)

    Args:
        d_model: Width D.
    """

    def __init__(self, *, d_model: int) -> None:
        super().__init__()
        self.dense = Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `x` [B, D]."""
        return torch.tanh(self.dense(x))


def check_tie(tie: str, allowed: tuple[str, ...]) -> None:
    """Raise unless `tie` is one of the allowed values."""
    if tie not in allowed:
        raise ConfigurationError(f"tie must be one of {', '.join(allowed)}, but is {tie!r}")
