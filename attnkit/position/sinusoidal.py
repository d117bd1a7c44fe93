# https://arxiv.org/abs/1706.03762
"""Sinusoidal positions."""

import torch
from torch import Tensor

from attnkit.position.base import Position, frequencies
from attnkit.registry import positions


@positions.register("sinusoidal")
class Sinusoidal(Position):
    r"""Sinusoidal positions, added to the embeddings. No parameters, no maximum length.

    Equation:
        $$p_{t,2i} = \sin(t / b^{2i/d}), \quad p_{t,2i+1} = \cos(t / b^{2i/d})$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    In Marian, all sines come first. The same holds for tensor2tensor, fairseq and Whisper, whose longest wavelength is exactly 2 pi b: use
    the base $b^{h/(h-1)}$ here, with h = d / 2.

    Args:
        d_model: Width of the embeddings, even.
        base: b; wavelengths range from 2 pi to 2 pi b.
        interleaved: Whether sines and cosines alternate, as in the paper; otherwise all sines come first.
        first: The position of the first token (fairseq, M2M-100: 2).

    Raises:
        ValueError: `d_model` is odd, or `base` is not above 1.

    Example:
        >>> import torch
        >>> Sinusoidal(d_model=4).embedding(torch.tensor([[0, 1]]))
        tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
                 [0.8415, 0.5403, 0.0100, 0.9999]]])
    """

    def __init__(self, *, d_model: int, base: float = 10_000.0, interleaved: bool = True, first: int = 0) -> None:
        super().__init__()
        if d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, but it is {d_model}")
        if not base > 1:
            raise ValueError(f"base must exceed 1, but is {base}")
        self.d_model, self.base, self.interleaved, self.first = d_model, base, interleaved, first

    def embedding(self, positions: Tensor) -> Tensor:
        """Return the table's rows for these positions, [B or 1, T, D]."""
        angles = (positions + self.first)[..., None] * frequencies(self.d_model, self.base, positions.device)  # [B, T, D / 2]
        return torch.stack([angles.sin(), angles.cos()], -1 if self.interleaved else -2).flatten(-2).to(self.dtype)
