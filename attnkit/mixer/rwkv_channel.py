# https://arxiv.org/abs/2305.13048
"""The channel mixing of RWKV-4."""

import torch
from torch import Tensor, nn

from attnkit.linear import Linear
from attnkit.mixer.base import Tokens
from attnkit.mixer.recurrence.tokens import LinearRecurrence, RecurrentState, lagged
from attnkit.registry import check_positive, mixers


@mixers.register("rwkv_channel")
class RWKVChannel(LinearRecurrence):
    r"""The channel mixing of RWKV-4 and RWKV-7: a feed-forward network of this token and the previous one, used as a separate layer.

    Equation:
        $$y_t = \sigma(r_t) \odot W_v \, \mathrm{relu}(k_t)^2$$
        where $r, k = W_{r,k} (\mu \odot x_t + (1 - \mu) \odot x_{t-1})$, each with its own $\mu$; without `receptance`, $\sigma(r_t)$ is
        dropped

    Paper: Peng et al. 2023, https://arxiv.org/abs/2305.13048; Peng et al. 2025, https://arxiv.org/abs/2503.14456 (without receptance)

    Initialisation: as for the first layer in the authors' code; linear maps as usual (there: $W_r$ and $W_v$ zero).

    Cost: that of its projections. State: `constant`, the last token.

    Args:
        inner_dim: Width of k (default: 4 D).
        receptance: Whether to gate the output, as in RWKV-4.

    Raises:
        ConfigurationError: A width is not positive.

    Example:
        >>> layers = [{"mixer": "rwkv", "feed_forward": "none"}, {"mixer": "rwkv_channel", "feed_forward": "none"}]
        >>> y, state = RWKVChannel(d_model=8)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 1, 8]))
    """

    last_map = "value"  # for initialisations

    def __init__(self, *, d_model: int, inner_dim: int | None = None, receptance: bool = True) -> None:
        super().__init__()
        check_positive(inner_dim=inner_dim)
        inner_dim = 4 * d_model if inner_dim is None else inner_dim
        self.mix_receptance = nn.Parameter(torch.empty(d_model)) if receptance else None
        self.mix_key = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()
        self.receptance = Linear(d_model, d_model, bias=False) if receptance else None
        self.key = Linear(d_model, inner_dim, bias=False)
        self.value = Linear(inner_dim, d_model, bias=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set weights of the current token that increase over the channels."""
        channels = torch.arange(self.mix_key.shape[0]) / self.mix_key.shape[0]
        self.mix_key.copy_(channels)
        if self.mix_receptance is not None:
            self.mix_receptance.copy_(channels)

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Mix; see `Mixer.forward`."""
        (before,), last = lagged(x, 1, tokens, None if state is None else state.memory)
        y = self.value(self.key(before.lerp(x, self.mix_key.to(x.dtype))).relu().square())
        if self.receptance is not None and self.mix_receptance is not None:
            y = self.receptance(before.lerp(x, self.mix_receptance.to(x.dtype))).sigmoid() * y
        return y, RecurrentState(last)
