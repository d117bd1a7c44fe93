# https://arxiv.org/abs/2108.12409
"""ALiBi: attention with linear biases."""

import math

import torch
from torch import Tensor

from attnkit.position.base import Position
from attnkit.registry import check_positive, positions


@positions.register("alibi")
class Alibi(Position):
    r"""ALiBi: logits decrease linearly with distance, with a fixed slope per head; in a bidirectional stack, symmetrically.

    Equation:
        $$b_{h,i,j} = -s \, m_h \, |i - j|, \quad m_h = 2^{-8 h / H}$$

    Paper: Press et al. 2022, https://arxiv.org/abs/2108.12409

    If H is not a power of two, the slopes are those of the next lower power, followed by every other slope of the next higher one, as in
    the paper's code.

    Args:
        num_heads: Number of query heads H.
        scale: s, which multiplies all slopes (Falcon RW: head_dim^-0.5, as if the biases were added before the scores are scaled).

    Raises:
        ValueError: `scale` is not positive.

    Example:
        >>> import torch
        >>> Alibi(num_heads=8).bias(torch.tensor([[2]]), torch.arange(3)[None])[0, 0]
        tensor([[-1.0000, -0.5000, -0.0000]])
    """

    by_offset = True

    def __init__(self, *, num_heads: int, scale: float = 1.0) -> None:
        super().__init__()
        check_positive(scale=scale)
        self.num_heads, self.scale = num_heads, scale

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias [B or 1, H, Q, K]."""
        distance = (query_positions[:, :, None] - key_positions[:, None, :]).abs()
        return -(self.scale * _slopes(self.num_heads, distance.device)).to(self.dtype)[:, None, None] * distance[:, None]


def _slopes(num_heads: int, device: torch.device) -> Tensor:
    """Return the slopes, computed on the device: a copy from the host would interrupt it, and could not be recorded."""
    power = 2 ** int(math.log2(num_heads))
    precision = torch.float32 if device.type == "mps" else torch.float64
    steps = torch.arange(1, 2 * power + 1, device=device, dtype=precision)
    exponents = torch.cat([steps[:power] * -8, steps[::2][: num_heads - power] * -4])
    slopes: Tensor = (exponents / power).exp2()
    return slopes
