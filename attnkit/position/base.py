"""What a position kind may do: add to the embeddings, rotate queries and keys, or add a bias to the logits."""

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Rotation:
    """A rotation of the first 2 R channels of a head, by position.

    Attributes:
        cos: [B or 1, 1, T, R] fp32, or float64 in a float64 model.
        sin: As `cos`.
        interleaved: Pairs are neighbouring channels (2i, 2i + 1), instead of (i, i + R).
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool = False

    def at(self, positions: Tensor) -> "Rotation":
        """Return the rotation at `positions` [B, T], of a rotation that was made for the positions 0, 1, 2, ... ([1, 1, N, R])."""
        return Rotation(self.cos[0, 0][positions][:, None], self.sin[0, 0][positions][:, None], self.interleaved)

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate queries or keys [B, H, T, Dh], computing in fp32 or more."""
        width = 2 * self.cos.shape[-1]
        rotated, rest = x[..., :width], x[..., width:]
        axis, pairs = (-1, (-1, 2)) if self.interleaved else (-2, (2, -1))
        first, second = rotated.to(torch.promote_types(x.dtype, self.cos.dtype)).reshape(*x.shape[:-1], *pairs).unbind(axis)
        turned = (first * self.cos - second * self.sin, first * self.sin + second * self.cos)
        rotated = torch.stack(turned, axis).flatten(-2).to(x.dtype)
        return torch.cat([rotated, rest], -1) if rest.shape[-1] else rotated


class Position(nn.Module, ABC):
    """A way to tell a stack where its tokens are. A stack owns one and shares it between its layers.

    Subclasses override what they use; what they leave alone does nothing. Positions are integers, [B, T] or [1, T].

    Attributes:
        max_length: Positions end here, or None if they do not end.
        needs_inner_product: Legal only with attention whose score is an inner product.
    """

    max_length: int | None = None
    needs_inner_product: ClassVar[bool] = False
    _precision: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_precision", torch.empty(0), persistent=False)  # `.double()` reaches it, as it does the parameters

    @property
    def dtype(self) -> torch.dtype:
        """The type of computed tables: float64 after `.double()`, else fp32, also in half precision."""
        return torch.promote_types(self._precision.dtype, torch.float32)

    def embedding(self, positions: Tensor) -> Tensor | None:
        """Return what is added to the embedded tokens, [B or 1, T, D]."""
        return None

    def rotation(self, positions: Tensor) -> Rotation | None:
        """Return the rotation of projected queries and keys at these positions."""
        return None

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Return what is added to the logits, [B or 1, H, Q, K]; finite, for what may not be attended is the mask's to say."""
        return None


def frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """Return the angular frequencies base^(-2i / width) for i < width / 2, [width / 2] in float64.

    Made anew on each call: nothing to lose in `.to(bfloat16)`, meta-device initialisation or sharding.
    """
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
