# https://arxiv.org/abs/2305.19466
"""No positions."""

from attnkit.position.base import Position
from attnkit.registry import positions


@positions.register("none")
class NoPosition(Position):
    """No positions: an encoder sees a bag of tokens; a decoder can still infer positions from its causal mask.

    Equation:
        $$x_t' = x_t$$

    Paper: Kazemnejad et al. 2023, https://arxiv.org/abs/2305.19466

    Example:
        >>> import torch
        >>> NoPosition().embedding(torch.arange(3)[None]) is None
        True
    """
