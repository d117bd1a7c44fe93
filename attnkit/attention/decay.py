# https://arxiv.org/abs/2503.02130
"""A bias of attention that decays from a key to a query, and its form as extra channels of both."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.half import HALF

HALVES = 3  # numbers of 8 binary digits that together keep the 24 of fp32


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
    def values(self) -> Tensor:
        """The whole bias, [B, H, Q, K]."""
        return (self.query - self.key.mT).clamp(max=0.0)

    def as_channels(self, query: Tensor, key: Tensor, scale: float) -> tuple[Tensor, Tensor] | None:
        """Return queries [B, H, Q, E] and keys [B, Hkv, K, E] with channels whose inner products, times `scale`, are the bias.

        So a fused kernel needs no bias of all pairs. Returns None where this does not pay, for a single query, and in fp16, whose range
        is too small.

        Example:
            >>> bias, x = DecayBias(torch.tensor([[[[-1.0], [-3.0]]]]), torch.tensor([[[[0.0], [-1.0]]]])), torch.zeros(1, 1, 2, 8)
            >>> query, key = bias.as_channels(x, x, 0.5)
            >>> 0.5 * query @ key.mT
            tensor([[[[-1.,  0.],
                      [-3., -2.]]]])
        """
        if query.shape[-2] == 1 or query.dtype == torch.float16:
            return None
        heads, groups = query.shape[1], query.shape[1] // key.shape[1]
        own, theirs = (_parts(x / scale, query.dtype) for x in (self.query, -self.key))  # [B, H, T, N]
        count = own.shape[-1]
        theirs = torch.unflatten(theirs, 1, (-1, groups)).transpose(2, 3).flatten(-2)  # [B, Hkv, K, G N]
        # a query reads the channels of its own head, among those of all heads that share the key
        head = torch.eye(groups, device=query.device, dtype=query.dtype).repeat_interleave(count, 1)  # [G, G N]
        head = head.repeat(heads // groups, 1)[:, None].expand(*query.shape[:-1], -1)
        ones = key.new_ones(()).expand(*key.shape[:-1], count)
        return _aligned(torch.cat([query, own, head], -1)), _aligned(torch.cat([key, ones, theirs], -1))


def _aligned(x: Tensor) -> Tensor:
    """Return vectors [..., E] with a multiple of 8 channels, as CUDA's fused kernels require; the added ones are zero."""
    return F.pad(x, (0, -x.shape[-1] % 8))


def _parts(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers [..., 1] as a sum of numbers of this dtype, [..., N]."""
    if dtype not in HALF:
        return x.to(dtype)
    parts: list[Tensor] = []
    for _ in range(HALVES):
        parts.append(x.to(dtype))
        x = x - parts[-1].to(x.dtype)
    return torch.cat(parts, -1)
