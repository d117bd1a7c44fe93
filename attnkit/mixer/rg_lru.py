# https://arxiv.org/abs/2402.19427
"""The recurrent block of Griffin and RecurrentGemma: a real-gated linear recurrent unit."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.feed_forward.base import make_activation
from attnkit.linear import BlockDiagonal, Linear
from attnkit.mixer.base import Tokens
from attnkit.mixer.heads import head_width
from attnkit.mixer.recurrence.scan import scan
from attnkit.mixer.recurrence.short_convolution import ShortConvolution
from attnkit.mixer.recurrence.tokens import LinearRecurrence, RecurrentState, decays, in_full_precision, lagged, silent
from attnkit.registry import mixers

SHARPNESS = 8.0  # the constant c of the paper
LEAST = 1e-12  # the smallest argument of the square root, which keeps its gradient finite


@mixers.register("rg_lru")
class RGLRU(LinearRecurrence):
    r"""The recurrent block of Griffin: a short convolution, the real-gated linear recurrent unit (RG-LRU), and a gate.

    Equation:
        $$h_t = a_t \odot h_{t-1} + \sqrt{1 - a_t^2} \odot \sigma(W_i u_t + b_i) \odot u_t, \qquad
        a_t = \exp(-8 \, \mathrm{softplus}(\Lambda) \odot \sigma(W_r u_t + b_r)), \qquad
        y_t = W_O (h_t \odot \mathrm{gelu}(W_G x_t))$$

    Here $u = \mathrm{conv}(W x)$, $W_i$ and $W_r$ are block-diagonal, and for the first token of a document, 1 replaces the root.

    Paper: De et al. 2024, https://arxiv.org/abs/2402.19427

    Initialisation: $\Lambda$ such that $\exp(-\mathrm{softplus}(\Lambda))$ is between 0.9 and 0.999, and $W_i$ and $W_r$ normal with
    variance 1 / fan-in, as in the authors' code; other maps and the convolution as usual (there: a convolution 6 times smaller).

    Cost per token and channel: about 20 operations besides the projections. State: `constant`, one number per channel, K - 1 tokens of
    the convolution, and whether there has been a token. Training keeps about 10 numbers per token and channel.

    Args:
        num_heads: Number of blocks in $W_i$ and $W_r$.
        inner_dim: Width of the recurrence (default: D).
        activation: Name of the gate's activation.

    Raises:
        ConfigurationError: `num_heads` is missing, or does not divide `inner_dim`.

    Example:
        >>> y, state = RGLRU(d_model=8, num_heads=2)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape, state.recent.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 9]), torch.Size([1, 3, 8]))
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int | None = None,
        inner_dim: int | None = None,
        kernel_size: int = 4,
        activation: str = "gelu_tanh",
    ) -> None:
        super().__init__()
        inner_dim = d_model if inner_dim is None else inner_dim
        num_heads, width = head_width("rg_lru", inner_dim, num_heads)
        self.rate = nn.Parameter(torch.empty(inner_dim))
        self.reset_parameters()
        self.input, self.gate = (Linear(d_model, inner_dim) for _ in range(2))
        self.convolution = ShortConvolution(channels=inner_dim, kernel_size=kernel_size, bias=True, activation="identity")
        self.input_gate, self.recurrence_gate = (BlockDiagonal(num_heads, width) for _ in range(2))
        self.output = Linear(inner_dim, d_model)
        self.activation = make_activation(activation)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw Lambda, the parameter of the decays."""
        self.rate.uniform_(0.9**2, 0.999**2).log_().mul_(-0.5).expm1_().log_()

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Mix; see `Mixer.forward`."""
        u, recent = self.convolution(self.input(x), tokens, None if state is None else state.recent)
        u, opened, kept = in_full_precision(u, self.input_gate(u).sigmoid(), self.recurrence_gate(u).sigmoid())
        start = torch.zeros_like(u[:, 0]) if state is None else state.memory[:, :-1]
        (has_previous,), last = lagged(torch.ones_like(u[..., :1]), 1, tokens, None if state is None else state.memory[:, None, -1:])
        log_decay = -SHARPNESS * kept * F.softplus(self.rate)
        factor = (-torch.expm1(2 * log_decay)).clamp(min=LEAST).sqrt()
        write = silent(torch.where(has_previous > 0, factor, 1.0) * opened * u, tokens, dim=1)
        states = scan(decays(log_decay.exp(), tokens, dim=1), write, start, dim=1)
        y = self.output((states * self.activation(*in_full_precision(self.gate(x)))).to(x.dtype))
        return y, RecurrentState(torch.cat([states[:, -1], last[:, 0]], -1), recent)
