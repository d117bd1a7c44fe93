# https://arxiv.org/abs/1910.10683
"""Relative positions in buckets."""

import math

import torch
from torch import Tensor, nn

from attnkit.position.base import Table
from attnkit.registry import positions


@positions.register("relative")
class Relative(Table):
    r"""Relative positions (T5): a learned bias per head and distance bucket, which the layers of a stack share by default.

    Half of the buckets hold one distance each; the others grow logarithmically up to `max_distance`, and all keys beyond share the last.
    In a bidirectional stack, keys before and after the query get half of the buckets each.

    Equation:
        $$b_{h,i,j} = B_{h,\,\mathrm{bucket}(j - i)}$$

    Paper: Raffel et al. 2020, https://arxiv.org/abs/1910.10683

    Initialisation: normal with standard deviation 0.02 (our choice: positions hardly affect the initial logits).

    Args:
        num_heads: Number of query heads H.
        bidirectional: Whether queries also attend to later keys.
        num_buckets: Total number of buckets, even and at least 4.
        max_distance: The distance from which all keys share a bucket.

    Raises:
        ValueError: `num_buckets` is odd or less than 4, or `max_distance` does not exceed the exact buckets of a side.

    Example:
        >>> import torch
        >>> Relative(num_heads=4, bidirectional=False).bias(torch.arange(6)[None], torch.arange(6)[None]).shape
        torch.Size([1, 4, 6, 6])
    """

    by_offset = True

    def __init__(self, *, num_heads: int, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128) -> None:
        per_side = num_buckets // 2 if bidirectional else num_buckets
        if num_buckets < 4 or num_buckets % 2:
            raise ValueError(f"num_buckets must be even and at least 4, but is {num_buckets}")
        if max_distance <= per_side // 2:
            raise ValueError(f"max_distance must exceed the {per_side // 2} exact buckets of a side, but is {max_distance}")
        super().__init__(num_buckets, num_heads)
        self.bidirectional, self.num_buckets, self.max_distance = bidirectional, num_buckets, max_distance

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias [B or 1, H, Q, K]."""
        buckets = self.buckets(key_positions[:, None, :] - query_positions[:, :, None])
        return nn.functional.embedding(buckets, self.weight).permute(0, 3, 1, 2)

    def buckets(self, offset: Tensor) -> Tensor:
        """Return the bucket of each offset (key position minus query position), as integers of the same shape."""
        count, first = self.num_buckets, torch.zeros_like(offset)
        if self.bidirectional:
            count //= 2
            first = (offset > 0) * count
            distance = offset.abs()
        else:
            distance = (-offset).clamp(min=0)
        exact = count // 2
        growth = (distance.clamp(min=exact) / exact).log() / math.log(self.max_distance / exact)
        far = exact + (growth * (count - exact)).long()
        return first + torch.where(distance < exact, distance, far.clamp(max=count - 1))
