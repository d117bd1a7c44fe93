# https://arxiv.org/abs/1705.03122
"""Learned positions."""

from torch import Tensor, nn

from attnkit.position.base import Table
from attnkit.registry import check_positive, positions


@positions.register("learned")
class Learned(Table):
    r"""Learned positions: one trained vector per position, added to the embeddings. Sequences longer than `max_length` raise an error.

    Equation:
        $$x_t' = x_t + P_t$$

    Paper: Gehring et al. 2017, https://arxiv.org/abs/1705.03122

    Initialisation: normal with standard deviation 0.02, as in BERT (GPT-2's code: 0.01).

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
        check_positive(max_length=max_length)
        super().__init__(max_length, d_model)
        self.max_length = max_length

    def embedding(self, positions: Tensor) -> Tensor:
        """Return the table's rows for these positions, [B or 1, T, D]."""
        return nn.functional.embedding(positions, self.weight)
