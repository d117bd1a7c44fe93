"""The interface of multi-token prediction: in training, a model predicts several tokens at once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from attnkit.registry import ConfigurationError, StackSpec, require_at_least, stacks
from attnkit.reports import Reporter
from attnkit.stack import DecoderStack


class MultiToken(nn.Module, Reporter, ABC):
    """Predicts the tokens after the next one from the output of a stack. Each has its own layer; all share the head.

    Only training and its validation compute it; generation does not use it. Each further layer is a stack of depth one, like the last layer
    of the stack, so the next token comes from the unchanged stack.

    Args:
        stack: The decoder stack.
        num_tokens: Number of tokens predicted at once n, including the next one.
        weight: Multiplies the loss of each further token.

    Attributes:
        stacks: The layers for the tokens 2, 3, ..., n.

    Raises:
        ConfigurationError: A number is out of range, or the stack does not consist of layers.
    """

    def __init__(self, *, stack: StackSpec, num_tokens: int, weight: float) -> None:
        super().__init__()
        require_at_least(2, num_tokens=num_tokens)
        if weight <= 0:
            raise ConfigurationError(f"weight must be positive, but is {weight}; to predict only the next token, remove multi_token")
        self.weight = weight
        resolved = stacks.resolve(stack)
        kind: type[DecoderStack] = stacks.get(resolved.name)
        last = kind.last_layer(resolved.arguments)
        self.stacks = nn.ModuleList(stacks.build({"name": resolved.name, **last}) for _ in range(num_tokens - 1))

    @abstractmethod
    def forward(self, x: Tensor, embedded: Tensor, *, key_mask: Tensor | None = None, documents: Tensor | None = None) -> list[Tensor]:
        """Return the vectors from which the head predicts the tokens at the offsets 2, 3, ..., n.

        Args:
            x: The stack's output [B, T, D].
            embedded: The embedded tokens [B, T, D].
            key_mask: [B, T] bool, True = real token (default: all).
            documents: [B, T] integers, the document of each token (default: a row is one document).

        Returns:
            n - 1 tensors [B, T, D].
        """

    def weighted(self, sums: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        """Return the contribution of the further tokens to the loss, and report their negative log-likelihoods.

        `sums` has, for each offset from 2, the sums of the loss and of the negative log-likelihood, and the number of targets.
        """
        if self.training:
            nothing = torch.zeros((), device=sums[0][0].device)
            self.leave(nothing, torch.stack([torch.stack([nll.double(), targets.double()]) for _, nll, targets in sums]).flatten())
        return self.weight * torch.stack([loss for loss, _, _ in sums]).sum()

    @override
    def end_step(self, sums: Tensor) -> dict[str, Tensor]:
        return {f"loss_{offset}": nll / targets for offset, (nll, targets) in enumerate(sums.view(-1, 2), start=2)}


def later(x: Tensor, offset: int, *, fill: float = 0) -> Tensor:
    """Return the entries `offset` tokens later in each row of `x` [B, T, ...], with `fill` beyond the end.

    Example:
        >>> later(torch.tensor([[4, 5, 6]]), 2)
        tensor([[6, 0, 0]])
    """
    return F.pad(x[:, offset:], (0, 0) * (x.ndim - 2) + (0, min(offset, x.shape[1])), value=fill)
