# https://arxiv.org/abs/1803.02155
"""Relative position vectors whose products with queries are added to the logits."""

import math
from collections.abc import Callable

from torch import Tensor

from attnkit.position.base import Table
from attnkit.registry import check_positive, positions


@positions.register("shaw")
class Shaw(Table):
    r"""Shaw's relative positions: each clipped distance has a learned vector, whose inner product with the query is added to the logits.

    All heads, and by default all layers of a stack, share the vectors. The paper also adds vectors to the values, and finds that they make
    no difference in addition to those of the keys (its table 4); here, as in later models, only the keys have vectors.

    Equation:
        $$b_{h,i,j} = \frac{q_{h,i}^\top a_{\mathrm{clip}(j - i, -k, k)}}{\sqrt{d_\mathrm{head}}}$$

    Paper: Shaw et al. 2018, https://arxiv.org/abs/1803.02155

    Initialisation: normal with standard deviation 0.02 (our choice: positions hardly affect the initial logits). The vectors have no
    weight decay.

    Args:
        head_dim: Width of a head.
        bidirectional: Whether queries also attend to later keys; otherwise there are vectors for earlier ones only.
        max_distance: k, the distance from which all keys on one side share a vector.

    Raises:
        ValueError: `max_distance` is not positive.

    Example:
        >>> import torch
        >>> Shaw(head_dim=4, max_distance=16).weight.shape
        torch.Size([33, 4])
    """

    reads_queries = True
    undecayed = ("weight",)

    def __init__(self, *, head_dim: int, bidirectional: bool = True, max_distance: int = 16) -> None:
        check_positive(max_distance=max_distance)
        first, last = -max_distance, max_distance if bidirectional else 0
        super().__init__(last - first + 1, head_dim)
        self.first, self.last = first, last

    def query_bias(self, query: Tensor, logits: Callable[[], Tensor], query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias [B, H, Q, K]; the logits are not read."""
        products = query @ self.weight.to(query.dtype).T / math.sqrt(query.shape[-1])  # [B, H, Q, 2k + 1]
        offsets = (key_positions[:, None, :] - query_positions[:, :, None]).clamp(self.first, self.last) - self.first
        return products.gather(-1, offsets[:, None].expand(*products.shape[:-1], -1))
