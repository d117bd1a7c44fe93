# https://arxiv.org/abs/2104.09864
"""Rotary positions."""

from torch import Tensor

from attnkit.position.base import Position, Rotation, frequencies
from attnkit.registry import positions


@positions.register("rotary")
class Rotary(Position):
    r"""Rotary positions: queries and keys are rotated by angles proportional to their position.

    The inner product of two rotated vectors depends only on their distance, so the attention score must be an inner product. The rotation
    follows the score's own projections, directly before the inner product.

    Equation:
        $$(q_i, q_{i+r})_t' = R(t \, b^{-i/r}) \, (q_i, q_{i+r})_t, \quad r = f d_\mathrm{head} / 2$$

    Paper: Su et al. 2021, https://arxiv.org/abs/2104.09864

    Args:
        head_dim: Width of a head.
        base: b; a larger base rotates more slowly.
        fraction: f, the fraction of the channels that is rotated (GPT-NeoX: 0.25).
        interleaved: Whether to pair neighbouring channels, as in the paper and GPT-J, rather than the two halves, as in GPT-NeoX and Llama.

    Raises:
        ValueError: The rotated width is odd or zero, or `fraction` is outside (0, 1].

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
            raise ValueError(f"rotary positions rotate pairs of channels, but head_dim {head_dim} * fraction {fraction} gives {self.width}")
        self.base, self.interleaved = base, interleaved

    def rotation(self, positions: Tensor) -> Rotation:
        """Return the rotation at these positions, [B or 1, 1, T, width / 2]."""
        angles = (positions[..., None] * frequencies(self.width, self.base, positions.device))[:, None]
        return Rotation(angles.cos().to(self.dtype), angles.sin().to(self.dtype), self.interleaved)
