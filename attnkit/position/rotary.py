# https://arxiv.org/abs/2104.09864
"""Rotary positions."""

from torch import Tensor

from attnkit.position.base import Position, Rotation, frequencies
from attnkit.registry import positions


@positions.register("rotary")
class Rotary(Position):
    r"""Rotary positions: queries and keys are turned by angles proportional to their position.

    An inner product of two turned vectors depends on their distance alone; so only attention whose score is an inner product
    takes rotations. They are applied after the score's own projections, where the inner product is.

    Equation:
        $$(q_i, q_{i+r})_t' = R(t \, b^{-i/r}) \, (q_i, q_{i+r})_t, \quad r = f d_\mathrm{head} / 2$$

    Paper: Su et al. 2021, https://arxiv.org/abs/2104.09864

    Args:
        head_dim: Width of a head.
        base: b; larger bases turn more slowly.
        fraction: f, the part of the channels that is turned (GPT-NeoX: 0.25).
        interleaved: Pair neighbouring channels, as in the paper and GPT-J, instead of the two halves, as in GPT-NeoX and Llama.

    Raises:
        ValueError: The turned width is odd or zero, or `fraction` is not in (0, 1].

    Example:
        >>> import torch
        >>> rotation = Rotary(head_dim=2).rotation(torch.tensor([[0, 1]]))
        >>> rotation(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]))
        tensor([[[[1.0000, 0.0000],
                  [0.5403, 0.8415]]]])
    """

    needs_inner_product = True

    def __init__(self, *, head_dim: int, base: float = 10_000.0, fraction: float = 1.0, interleaved: bool = False) -> None:
        super().__init__()
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must be in (0, 1], but is {fraction}")
        self.width = int(head_dim * fraction)
        if self.width < 2 or self.width % 2:
            raise ValueError(f"rotary positions turn pairs of channels, but head_dim {head_dim} * fraction {fraction} gives {self.width}")
        self.base, self.interleaved = base, interleaved

    def rotation(self, positions: Tensor) -> Rotation:
        """Return the rotation at these positions, [B or 1, 1, T, width / 2]."""
        angles = (positions[..., None] * frequencies(self.width, self.base, positions.device))[:, None]
        return Rotation(angles.cos().to(self.dtype), angles.sin().to(self.dtype), self.interleaved)
