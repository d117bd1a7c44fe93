# https://jmlr.org/papers/v15/srivastava14a.html
"""Dropout that is not the slowest operation of a Transformer on a CPU.

torch draws CPU dropout masks one Bernoulli number at a time (about 6 ns each). Here a CPU mask compares 16 random bits with the
threshold, four masks from each 64-bit draw. The probability is thereby a multiple of 2^-16, and the scale is that of the actual one.
Elsewhere this is `torch.nn.functional.dropout`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 2**16


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability `p` and scale the others by 1 / (1 - p), from torch's global generator.

    Example:
        >>> dropout(torch.ones(3), 0.0)
        tensor([1., 1., 1.])
        >>> sorted(set(dropout(torch.ones(1000), 0.5).tolist()))
        [0.0, 2.0]
    """
    if p in (0.0, 1.0) or x.device.type != "cpu" or torch.compiler.is_compiling():  # a compiler fuses it, and cannot trace `random_`
        return F.dropout(x, p)
    threshold = min(round(p * LEVELS), LEVELS - 1)
    bits = torch.empty(x.numel() // 4 + 1, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    dropped = bits[: x.numel()].view(x.shape) < threshold - LEVELS // 2
    return x.masked_fill(dropped, 0.0) * (LEVELS / (LEVELS - threshold))


class Dropout(nn.Module):
    """`dropout` in training mode, nothing in evaluation mode.

    Args:
        p: Probability of zeroing an element, in [0, 1].

    Raises:
        ValueError: `p` is not a probability.
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"a dropout probability lies in [0, 1], but is {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` [...] with some elements dropped."""
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        """Show the probability."""
        return f"p={self.p}"
