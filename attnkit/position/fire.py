# https://arxiv.org/abs/2310.04418
"""FIRE: functional interpolation for relative positions."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.linear import called, is_plain
from attnkit.position.base import Position
from attnkit.registry import positions

FEWEST_PAIRS = 4096  # number of query-key pairs from which looking up pieces is faster than the network on CPUs


@positions.register("fire")
class FIRE(Position):
    r"""FIRE: a small network maps the distance, as a fraction of the query's position, to a bias per head; layers share it by default.

    Distance and position are on a logarithmic scale, and positions below a threshold count as the threshold. The scale c and the
    threshold's multiplier m are learned. In a bidirectional stack, and for a source, the fraction may exceed one.

    Equation:
        $$b_{h,i,j} = f_h\Big(\frac{\psi(|i - j|)}{\psi(\max(L, i))}\Big), \quad \psi(x) = \ln(|c| x + 1), \quad
        f(x) = W_2 \, \mathrm{relu}(w_1 x + a_1) + a_2, \quad L = |m| L_0$$

    Paper: Li et al. 2024, https://arxiv.org/abs/2310.04418

    Initialisation: c = 0.1, m = 1, and the network like torch's linear maps, as in the paper's code. Nothing has weight decay.

    Args:
        num_heads: Number of query heads H.
        hidden_dim: Width of the network.
        threshold: L_0.

    Raises:
        ValueError: `hidden_dim` or `threshold` is not positive.

    Example:
        >>> FIRE(num_heads=4).bias(torch.arange(6)[None], torch.arange(6)[None]).shape
        torch.Size([1, 4, 6, 6])
    """

    undecayed = ("input", "output")
    as_written = False  # whether to compute the network for every pair, as FLOPs are counted

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
            share = (c * distance).log1p() / ((c * reach).log1p() + 1e-6)  # as in the paper's code, no division by zero
            # on GPUs, the gradients of all pairs would contend for a few addresses
            by_piece = share.is_cpu and share.numel() >= FEWEST_PAIRS and not self.as_written
            if not (is_plain(self.input) and is_plain(self.output)):  # their hooks, such as those of pruning, must run
                return called(self.output, called(self.input, share[..., None]).relu()).permute(0, 3, 1, 2)
            return self._pieces(share) if by_piece else self._network(share)

    def _network(self, share: Tensor) -> Tensor:
        """Return f of shares [B, Q, K] as written, [B, H, Q, K]; this computes `hidden_dim` numbers for each pair."""
        weight, bias, out_weight, out_bias = self._parameters_of_network()
        return F.linear(F.linear(share[..., None], weight, bias).relu(), out_weight, out_bias).permute(0, 3, 1, 2)

    def _pieces(self, share: Tensor) -> Tensor:
        """Return the same as `_network`: f is linear between the points where a hidden unit turns on or off.

        Each pair looks up the piece that contains its share, and the slope and the offset of that piece.
        """
        weight, bias, out_weight, out_bias = self._parameters_of_network()
        weight = weight.squeeze(1)
        bends, order = torch.where(weight == 0, torch.inf, -bias / weight).detach().sort()  # never 0 / 0, which cannot be sorted
        is_right = torch.arange(len(bends) + 1, device=share.device)[:, None] > order.argsort()  # [pieces, units]: right of the unit's bend
        is_on = torch.where(weight == 0, bias > 0, is_right == (weight > 0))
        slopes, offsets = F.linear(is_on * weight, out_weight).T, F.linear(is_on * bias, out_weight, out_bias).T  # [H, pieces]
        piece = torch.bucketize(share.detach(), bends).flatten().expand(len(slopes), -1)
        flat = torch.addcmul(offsets.gather(1, piece), slopes.gather(1, piece), share.flatten())
        return flat.view(-1, *share.shape).transpose(0, 1)

    def _parameters_of_network(self) -> tuple[Tensor, ...]:
        return tuple(x.to(self.dtype) for layer in (self.input, self.output) for x in (layer.weight, layer.bias))
