# https://arxiv.org/abs/2503.02130
"""A bias of attention that decays from a key to a query, and its form as extra channels of both."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.half import HALF

PARTS = 3  # bf16 numbers that together keep the 24 binary digits of an fp32 number
ALIGNMENT = 8  # CUDA's fused kernels require head widths that are multiples of this


@dataclass(frozen=True)
class DecayBias:
    """The bias min(0, a_i - b_j) of query i and key j, where a_i <= b_j for all keys that a query may read.

    Attributes:
        query: a, [B, H, Q, 1].
        key: b, [B, H, K, 1].

    Example:
        >>> sums = torch.tensor([0.0, -1.0, -3.0])[None, None, :, None]
        >>> DecayBias(sums, sums).values
        tensor([[[[ 0.,  0.,  0.],
                  [-1.,  0.,  0.],
                  [-3., -2.,  0.]]]])
    """

    query: Tensor
    key: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the bias."""
        return self.query.dtype

    @property
    def values(self) -> Tensor:
        """The whole bias, [B, H, Q, K]."""
        bias = self.query - self.key.mT
        return bias.masked_fill(bias > 0.0, 0.0)  # from torch 2.14 on, `clamp` would have no gradient where the sums are equal

    def as_channels(self, query: Tensor, key: Tensor, scale: float) -> tuple[Tensor, Tensor] | None:
        """Return queries [B, H, Q, E] and keys [B, Hkv, K, E] with channels whose inner products, times `scale`, are the bias.

        So a fused kernel needs no bias of all pairs. Returns None where the matrix is better: for a single query; for a key that so many
        heads share that the channels outnumber its own; in fp16, whose range is too small; and where products round fp32, as in TF32.

        Example:
            >>> bias, x = DecayBias(torch.tensor([[[[-1.0], [-3.0]]]]), torch.tensor([[[[0.0], [-1.0]]]])), torch.zeros(1, 1, 2, 8)
            >>> query, key = bias.as_channels(x, x, 0.5)
            >>> 0.5 * query @ key.mT
            tensor([[[[-1.,  0.],
                      [-3., -2.]]]])
        """
        heads, groups = query.shape[1], query.shape[1] // key.shape[1]
        is_rounded = query.dtype == torch.float16 or (query.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest")
        if query.shape[-2] == 1 or is_rounded or (PARTS if query.dtype in HALF else 1) * (groups + 1) > key.shape[-1]:
            return None
        own, theirs = (_parts(x / scale, query.dtype) for x in (self.query, -self.key))  # [B, H, T, N]
        count = own.shape[-1]
        theirs = torch.unflatten(theirs, 1, (-1, groups)).transpose(2, 3).flatten(-2)  # [B, Hkv, K, G N]
        # a query reads the channels of its own head, among those of all heads that share the key
        head = torch.eye(groups, device=query.device, dtype=query.dtype).repeat_interleave(count, 1)  # [G, G N]
        head = head.repeat(heads // groups, 1)[:, None].expand(*query.shape[:-1], -1)
        ones = key.new_ones(()).expand(*key.shape[:-1], count)
        return _aligned(torch.cat([query, own, head], -1)), _aligned(torch.cat([key, ones, theirs], -1))


def _aligned(x: Tensor) -> Tensor:
    return F.pad(x, (0, -x.shape[-1] % ALIGNMENT))


def _parts(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers [..., 1] as a sum of numbers of this dtype, [..., N]."""
    if dtype not in HALF:
        return x.to(dtype)
    parts: list[Tensor] = []
    for _ in range(PARTS):
        parts.append(x.to(dtype))
        x = x - parts[-1].to(x.dtype)
    return torch.cat(parts, -1)
