# https://arxiv.org/abs/1705.03122
"""Learned positions."""

import torch
from torch import Tensor, nn

from attnkit.position.base import Position
from attnkit.registry import check_positive, positions


@positions.register("learned")
class Learned(Position):
    r"""Learned positions: one trained vector per position, added to the embeddings. Sequences longer than `max_length` are refused.

    Equation:
        $$x_t' = x_t + P_t$$

    Paper: Gehring et al. 2017, https://arxiv.org/abs/1705.03122

    Initialisation: normal with standard deviation 0.02, as in BERT and GPT-2.

    Args:
        d_model: Width of the embeddings.
        max_length: Number of positions in the table.

    Raises:
        ValueError: `max_length` is not positive.

    Example:
        >>> import torch
        >>> Learned(d_model=8, max_length=64).embedding(torch.arange(5)[None]).shape
        torch.Size([1, 5, 8])
    """

    def __init__(self, *, d_model: int, max_length: int = 512) -> None:
        super().__init__()
        check_positive(max_length=max_length)
        self.max_length = max_length
        self.weight = nn.Parameter(torch.empty(max_length, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from a normal distribution with standard deviation 0.02."""
        nn.init.normal_(self.weight, std=0.02)

    def embedding(self, positions: Tensor) -> Tensor:
        """Return the table's rows for these positions, [B or 1, T, D]."""
        return nn.functional.embedding(positions, self.weight)
