# https://arxiv.org/abs/2405.21060
"""No feed-forward network."""

from torch import Tensor

from attnkit.feed_forward.base import FeedForward
from attnkit.registry import feed_forwards


@feed_forwards.register("none")
class NoFeedForward(FeedForward):
    r"""No feed-forward network: a layer is only its mixer, as in Mamba.

    Equation:
        $$\mathrm{none}(x) = 0$$

    Paper: Dao and Gu 2024, https://arxiv.org/abs/2405.21060

    Example:
        >>> import torch
        >>> NoFeedForward()(torch.ones(1, 2, 3)).sum()
        tensor(0.)
    """

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Return zeros [B, T, D]. A layer skips this sublayer together with its residual connection."""
        return 0 * x
