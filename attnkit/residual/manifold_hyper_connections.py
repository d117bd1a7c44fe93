# https://arxiv.org/abs/2512.24880
"""Manifold-constrained hyper-connections: several streams, which each sublayer mixes by a doubly stochastic matrix."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.registry import require_at_least, residuals
from attnkit.residual.base import NormedResidual, Sublayer


@residuals.register("manifold_hyper_connections")
class ManifoldHyperConnections(NormedResidual):
    r"""Manifold-constrained hyper-connections (mHC, DeepSeek-V4): N streams, mixed so that their mean neither grows nor shrinks.

    The streams $H \in \mathbb{R}^{N \times D}$ start as N copies of the embedding, and are summed at the end. Unlike `hyper_connections`,
    weights are positive, they depend on all streams of a token together, and the rows and columns of the mixing matrix $A$ sum to 1.

    Equation:
        $$H' = A^\top H + b \, \mathrm{dropout}(f(\mathrm{norm}(a^\top H)))^\top, \qquad
        a = \sigma(s_1 W_1 h + c_1), \quad b = 2 \, \sigma(s_2 W_2 h + c_2), \quad
        A = \mathrm{Sinkhorn}(\exp(s_3 W_3 h + c_3))$$

    Here $h$ are all streams of the token, divided by their root mean square. Each Sinkhorn iteration divides the rows, then the columns,
    by their sums.

    Paper: Xie et al. 2025, https://arxiv.org/abs/2512.24880; Zhu et al. 2024, https://arxiv.org/abs/2409.19606 (hyper-connections)

    Initialisation: W is zero and s is 0.01, so all streams start equal and a new stack computes the same as with `pre_norm`, if norms
    ignore the scale, as `layer_norm` and `rms_norm` do. $c_1$ reads mostly stream k mod N in sublayer k (2 there, otherwise -2), $c_2$ is
    zero, and $c_3$ keeps the streams nearly apart (0 on the diagonal, otherwise -8). Weight decay acts on W alone.

    Args:
        make_norm: Returns a new norm of the stream's width.
        d_model: Width of a stream D.
        num_streams: Number of streams N, at least 2.
        iterations: Number of Sinkhorn iterations.
        eps: Added to $a$, to the elements of A after the first division, and to the sums, as in DeepSeek's code.
        norm_eps: Added to the mean square of the streams.

    Raises:
        ConfigurationError: There are fewer than two streams, or no iterations, or an epsilon is negative.

    Example:
        >>> residual = ManifoldHyperConnections(make_norm=torch.nn.Identity, d_model=2, num_streams=4)
        >>> streams = torch.ones(1, 1, 4, 2)
        >>> residual.after(streams, torch.ones(1, 1, 2)).detach()[0, 0, 0].round(decimals=3)
        tensor([2., 2.])
    """

    needs_final_norm = True
    maps = ("reading_weight", "writing_weight", "mixing_weight")  # their fan-in grows with the width; read by initialisations

    def __init__(
        self,
        *,
        make_norm: Callable[[], nn.Module],
        dropout: float = 0.0,
        d_model: int,
        sublayer: Sublayer = Sublayer(),  # noqa: B008 (frozen)
        num_streams: int = 4,
        iterations: int = 20,
        eps: float = 1e-6,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(make_norm=make_norm, dropout=dropout)
        require_at_least(2, num_streams=num_streams)
        require_at_least(1, iterations=iterations)
        require_at_least(0, eps=eps, norm_eps=norm_eps)
        self.streams, self.first = num_streams, sublayer.index % num_streams
        self.iterations, self.eps, self.norm_eps = iterations, eps, norm_eps
        self.reading_weight = nn.Parameter(torch.empty(num_streams, num_streams * d_model))
        self.writing_weight = nn.Parameter(torch.empty(num_streams, num_streams * d_model))
        self.mixing_weight = nn.Parameter(torch.empty(num_streams**2, num_streams * d_model))
        self.reading_bias = nn.Parameter(torch.empty(num_streams))
        self.writing_bias = nn.Parameter(torch.empty(num_streams))
        self.mixing_bias = nn.Parameter(torch.empty(num_streams**2))
        self.scales = nn.Parameter(torch.empty(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weights so that sublayers read mostly one stream, in turn, and write to all equally."""
        with torch.no_grad():
            for weight in (self.reading_weight, self.writing_weight, self.mixing_weight, self.writing_bias):
                nn.init.zeros_(weight)
            nn.init.constant_(self.scales, 0.01)
            nn.init.constant_(self.reading_bias, -2.0)
            self.reading_bias[self.first] = 2.0
            nn.init.constant_(self.mixing_bias, -8.0).view(self.streams, -1).fill_diagonal_(0.0)

    def before(self, x: Tensor) -> Tensor:
        """Read the streams [B, T, N, D], giving [B, T, D]."""
        (logits,) = self._project(x, self.reading_weight)  # [B, T, N]
        reading = torch.sigmoid(self.scales[0] * logits + self.reading_bias) + self.eps
        return self.normed((reading[..., None] * x).sum(-2).to(x.dtype))

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Mix the streams and write to them, [B, T, N, D]."""
        writing_logits, mixing_logits = self._project(x, self.writing_weight, self.mixing_weight)
        writing = 2 * torch.sigmoid(self.scales[1] * writing_logits + self.writing_bias)
        mixing = self._doubly_stochastic(self.scales[2] * mixing_logits + self.mixing_bias)
        with torch.autocast(x.device.type, enabled=False):  # the streams keep their precision
            mixed = mixing.transpose(-1, -2).to(x.dtype) @ x
        return mixed + writing[..., None].to(x.dtype) * self.drop(output)[..., None, :]

    def _project(self, x: Tensor, *weights: Tensor) -> list[Tensor]:
        """Return a token's logits [B, T, outputs] for each map, in float32 or better: the matrix is divided by sums many times."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        mean_square: Tensor = torch.linalg.vector_norm(x, dim=(-2, -1), dtype=dtype).square() / weights[0].shape[-1]  # [B, T]
        scale = (mean_square + self.norm_eps).rsqrt()[..., None]
        streams = x.flatten(-2).to(dtype)
        with torch.autocast(x.device.type, enabled=False):
            return [F.linear(streams, weight.to(dtype)) * scale for weight in weights]

    def _doubly_stochastic(self, logits: Tensor) -> Tensor:
        """Return positive matrices [B, T, N, N] whose rows and columns sum to nearly 1, given their logits [B, T, N N]."""
        rows = torch.unflatten(logits.movedim(-1, 0), 0, (self.streams, -1)).contiguous()  # [N, N, B, T]: long inner axes are faster
        matrix = rows.softmax(1) + self.eps
        matrix = matrix / (matrix.sum(0, keepdim=True) + self.eps)
        for _ in range(self.iterations - 1):
            matrix = matrix / (matrix.sum(1, keepdim=True) + self.eps)
            matrix = matrix / (matrix.sum(0, keepdim=True) + self.eps)
        return torch.movedim(matrix, (0, 1), (-2, -1))
