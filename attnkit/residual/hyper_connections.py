# https://arxiv.org/abs/2409.19606
"""Hyper-connections: several streams, with learned weights by which sublayers read, write and mix them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnkit.registry import require_at_least, residuals
from attnkit.residual.base import NormedResidual, Sublayer


@residuals.register("hyper_connections")
class HyperConnections(NormedResidual):
    r"""Hyper-connections: N streams, which each sublayer reads, mixes and writes to with separate learned weights.

    The streams $H \in \mathbb{R}^{N \times D}$ start as N copies of the embedding, and are summed at the end. With one stream, and
    weights fixed at their initial values, this would be `pre_norm`.

    Equation:
        $$H' = A_r^\top H + B \, \mathrm{dropout}(f(\mathrm{norm}(A_m^\top H)))^\top$$
        where `dynamic` weights depend on the token: $A_m = \bar A_m + s_\alpha \tanh(\bar H W_m)$,
        $A_r = \bar A_r + s_\alpha \tanh(\bar H W_r)$, $B = \bar B + s_\beta \tanh(\bar H W_\beta)$, with $\bar H$ the normalised streams

    Paper: Zhu et al. 2024, https://arxiv.org/abs/2409.19606

    Initialisation: $\bar A_m$ reads stream k mod N in sublayer k, $\bar A_r$ is the identity, $\bar B$ is one, W is zero and s is 0.01, so
    a new stack computes the same as with pre-norm (the paper also scales the output maps of sublayers by $\sqrt N$). Weight decay acts on W
    alone.

    Args:
        make_norm: Returns a new norm of the stream's width; called twice with `dynamic`.
        d_model: Width of a stream D.
        num_streams: Number of streams N, at least 2.
        dynamic: Whether the weights depend on the token.

    Raises:
        ConfigurationError: There are fewer than two streams.

    Example:
        >>> residual = HyperConnections(make_norm=torch.nn.Identity, d_model=2, num_streams=3)
        >>> streams = torch.ones(1, 1, 3, 2)
        >>> residual.after(streams, 3 * residual.before(streams)).detach()[0, 0]
        tensor([[4., 4.],
                [4., 4.],
                [4., 4.]])
    """

    needs_final_norm = True
    undecayed = ("mixing",)  # weight decay would shrink the identity

    @property
    def maps(self) -> tuple[str, ...]:
        """The parameters whose fan-in grows with the model's width; initialisations read them."""
        return () if self.stream_norm is None else ("mixing_weight", "writing_weight")

    def __init__(
        self,
        *,
        make_norm: Callable[[], nn.Module],
        dropout: float = 0.0,
        d_model: int,
        sublayer: Sublayer = Sublayer(),  # noqa: B008 (frozen)
        num_streams: int = 4,
        dynamic: bool = True,
    ) -> None:
        super().__init__(make_norm=make_norm, dropout=dropout)
        require_at_least(2, num_streams=num_streams)
        self.streams, self.first = num_streams, sublayer.index % num_streams
        self.mixing = nn.Parameter(torch.empty(num_streams, num_streams + 1))  # columns: reading (A_m), then mixing (A_r)
        self.writing = nn.Parameter(torch.empty(num_streams))
        self.stream_norm: nn.Module | None = make_norm() if dynamic else None
        if dynamic:
            self.mixing_weight = nn.Parameter(torch.empty(d_model, num_streams + 1))
            self.writing_weight = nn.Parameter(torch.empty(d_model))
            self.scales = nn.Parameter(torch.empty(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weights so that sublayers read the streams in turn, and write to all equally."""
        with torch.no_grad():
            nn.init.eye_(self.mixing[:, 1:])
            self.mixing[:, 0].zero_()
            self.mixing[self.first, 0] = 1.0
            nn.init.ones_(self.writing)
            if self.stream_norm is not None:
                nn.init.zeros_(self.mixing_weight)
                nn.init.zeros_(self.writing_weight)
                nn.init.constant_(self.scales, 0.01)

    def before(self, x: Tensor) -> Tensor:
        """Read the streams [B, T, N, D], giving [B, T, D]."""
        mixing, _ = self._weights(x)
        return self.normed((mixing[..., :1] * x).sum(-2))

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Mix the streams and write to them, [B, T, N, D]."""
        mixing, writing = self._weights(x)
        with torch.autocast(x.device.type, enabled=False):  # the streams keep their precision
            mixed = mixing[..., 1:].transpose(-1, -2).to(x.dtype) @ x
        return mixed + writing[..., None] * self.drop(output)[..., None, :]

    def _weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return A [B, T, N, N + 1] and B [B, T, N], without the first two axes if they do not depend on the token."""
        if self.stream_norm is None:
            return self.mixing, self.writing
        normed = self.stream_norm(x)
        mixing = self.mixing + self.scales[0] * torch.tanh(normed @ self.mixing_weight)
        return mixing, self.writing + self.scales[1] * torch.tanh(normed @ self.writing_weight)
