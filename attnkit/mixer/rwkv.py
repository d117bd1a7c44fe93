# https://arxiv.org/abs/2305.13048
"""The time mixing of RWKV-4."""

import math

import torch
from torch import Tensor, nn

from attnkit.linear import Linear
from attnkit.mixer.base import Tokens
from attnkit.mixer.recurrence.scan import EMPTY, scan
from attnkit.mixer.recurrence.tokens import LinearRecurrence, RecurrentState, in_full_precision, lagged, log_decays, relative_to_largest
from attnkit.registry import check_positive, mixers


@mixers.register("rwkv")
class RWKV(LinearRecurrence):
    r"""The time mixing of RWKV-4 (Dove): for each channel, a weighted mean of values whose weights decay with distance.

    Equation:
        $$y_t = W_O \Big(\sigma(r_t) \odot \frac{\sum_{i<t} e^{-(t - 1 - i) w + k_i} v_i + e^{u + k_t} v_t}
        {\sum_{i<t} e^{-(t - 1 - i) w + k_i} + e^{u + k_t}}\Big)$$

    Here $r, k, v = W_{r,k,v} (\mu \odot x_t + (1 - \mu) \odot x_{t-1})$, each with its own $\mu$, and $w = e^\omega$.

    Paper: Peng et al. 2023, https://arxiv.org/abs/2305.13048. Sums are kept relative to the largest weight, so no exponent is above zero.

    Initialisation: as for the first layer in the authors' code; linear maps as usual (there: $W_r$, $W_k$ and $W_O$ zero).

    Cost per token and channel: about 30 operations, none of which is a matrix product. State: `constant`, 3 numbers per channel and the
    last token. Training keeps about 10 numbers per token and channel.

    Args:
        inner_dim: Width of r, k and v (default: D).

    Raises:
        ConfigurationError: A width is not positive.

    Example:
        >>> y, state = RWKV(d_model=8)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape, state.recent.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 3, 8]), torch.Size([1, 1, 8]))
    """

    def __init__(self, *, d_model: int, inner_dim: int | None = None) -> None:
        super().__init__()
        check_positive(inner_dim=inner_dim)
        inner_dim = d_model if inner_dim is None else inner_dim
        self.mix_receptance, self.mix_key, self.mix_value = (nn.Parameter(torch.empty(d_model)) for _ in range(3))
        self.log_rate, self.bonus = (nn.Parameter(torch.empty(inner_dim)) for _ in range(2))
        self.reset_parameters()
        self.receptance, self.key, self.value = (Linear(d_model, inner_dim, bias=False) for _ in range(3))
        self.output = Linear(inner_dim, d_model, bias=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set weights of the current token that increase over the channels, decays from slow to fast, and bonuses near log 0.3."""
        channels = torch.arange(self.mix_key.shape[0]) / self.mix_key.shape[0]
        self.mix_key.copy_(channels)
        self.mix_value.copy_(channels)
        self.mix_receptance.copy_(channels.sqrt())
        inner = torch.arange(self.log_rate.shape[0])
        self.log_rate.copy_(-5 + 8 * (inner / max(1, len(inner) - 1)) ** 0.7)
        self.bonus.copy_(math.log(0.3) + 0.5 * ((inner + 1) % 3 - 1))

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Mix; see `Mixer.forward`."""
        (before,), recent = lagged(x, 1, tokens, None if state is None else state.recent)
        receptance = self.receptance(before.lerp(x, self.mix_receptance.to(x.dtype))).sigmoid()
        key, value = in_full_precision(
            self.key(before.lerp(x, self.mix_key.to(x.dtype))), self.value(before.lerp(x, self.mix_value.to(x.dtype)))
        )
        start = _empty(key) if state is None else state.memory
        rates = log_decays(-self.log_rate.to(key.dtype).exp().expand_as(key), tokens, dim=1)
        log_decay, weight, largest, earlier = relative_to_largest(rates, key, start[:, 2], tokens, dim=1)
        sums = scan(log_decay.exp()[:, :, None], torch.stack([weight * value, weight], 2), start[:, :2], dim=1)  # [B, T, 2, inner]
        past = torch.cat([start[:, None, :2], sums[:, :-1]], 1)
        earlier = earlier if tokens.starts is None else earlier.masked_fill(tokens.starts[..., None], EMPTY)
        current = self.bonus + key
        top = torch.maximum(earlier, current.detach())
        total, present = past * torch.exp(earlier - top)[:, :, None], torch.exp(current - top)
        mean = (total[:, :, 0] + present * value) / (total[:, :, 1] + present)
        return self.output(receptance * mean.to(receptance.dtype)), RecurrentState(torch.cat([sums[:, -1], largest[:, -1:]], 1), recent)


def _empty(key: Tensor) -> Tensor:
    """Return the state before the first token: two sums of zero, and the largest logit."""
    zeros = torch.zeros_like(key[:, :1])
    return torch.cat([zeros, zeros, torch.full_like(zeros, EMPTY)], 1)
