# https://arxiv.org/abs/2310.04418
"""FIRE: functional interpolation for relative positions."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.position.base import Position
from attnkit.registry import positions


@positions.register("fire")
class FIRE(Position):
    r"""FIRE: a small network maps the distance, as a share of the query's position, to a bias per head; shared by all layers of a stack.

    Both are compared on a logarithmic scale, and positions before a threshold count as the threshold. The scale c and the threshold's
    multiplier m are learned. In a bidirectional stack, and for a source, the share may exceed one.

    Equation:
        $$b_{h,i,j} = f_h\Big(\frac{\psi(|i - j|)}{\psi(\max(L, i))}\Big), \quad \psi(x) = \ln(|c| x + 1), \quad
        f(x) = W_2 \, \mathrm{relu}(w_1 x + a_1) + a_2, \quad L = |m| L_0$$

    Paper: Li et al. 2024, https://arxiv.org/abs/2310.04418

    Initialisation: c = 0.1, m = 1, and the network as torch's linear maps, as in the paper's code.

    Args:
        num_heads: Query heads H.
        hidden_dim: Width of the network.
        threshold: L_0.

    Raises:
        ValueError: `hidden_dim` or `threshold` is not positive.

    Example:
        >>> FIRE(num_heads=4).bias(torch.arange(6)[None], torch.arange(6)[None]).shape
        torch.Size([1, 4, 6, 6])
    """

    def __init__(self, *, num_heads: int, hidden_dim: int = 32, threshold: float = 512.0) -> None:
        super().__init__()
        if hidden_dim < 1 or threshold <= 0:
            raise ValueError(f"hidden_dim ({hidden_dim}) and threshold ({threshold}) must be positive")
        self.threshold = threshold
        self.c = nn.Parameter(torch.empty(1))
        self.multiplier = nn.Parameter(torch.empty(1))
        self.input = nn.Linear(1, hidden_dim)
        self.output = nn.Linear(hidden_dim, num_heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set c to 0.1 and m to 1."""
        nn.init.constant_(self.c, 0.1)
        nn.init.ones_(self.multiplier)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias [B or 1, H, Q, K]."""
        with torch.autocast(query_positions.device.type, enabled=False):
            c, limit = self.c.to(self.dtype).abs(), self.multiplier.to(self.dtype).abs() * self.threshold
            distance = (query_positions[:, :, None] - key_positions[:, None, :]).abs().to(self.dtype)
            reach = torch.maximum(query_positions.to(self.dtype), limit)[:, :, None]
            share = (c * distance).log1p() / ((c * reach).log1p() + 1e-6)  # as in the paper's code, nothing is divided by zero
            return self._linear(self.output, self._linear(self.input, share[..., None]).relu()).permute(0, 3, 1, 2)

    def _linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x, layer.weight.to(self.dtype), layer.bias.to(self.dtype))
