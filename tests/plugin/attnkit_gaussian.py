# https://arxiv.org/abs/1908.11775
"""A third-party attention: this module and one entry-point line in pyproject.toml."""

from torch import Tensor

from attnkit.attention import Attention


class Gaussian(Attention):
    r"""Gaussian attention: the nearer a key lies to the query, the more it is attended.

    Equation:
        $$\mathrm{score}(q, k) = -\frac{\lVert q - k \rVert^2}{2 \sigma^2}$$

    Paper: Tsai et al. 2019, https://arxiv.org/abs/1908.11775

    Args:
        head_dim: Width of each query and key head.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        width: Sigma.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[[0.0], [4.0]]]])
        >>> Gaussian(head_dim=1).weights(x, x)[0, 0].round(decimals=3)
        tensor([[1., 0.],
                [0., 1.]])
    """

    def __init__(self, *, head_dim: int, num_heads: int = 1, num_kv_heads: int | None = None, width: float = 1.0) -> None:
        super().__init__(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.width = width

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Return minus half the squared distance in units of sigma, [B, H, Q, K]."""
        squares = query.square().sum(-1)[..., :, None] + key.square().sum(-1)[..., None, :]
        return (query @ key.transpose(-1, -2) - squares / 2) / self.width**2
