# https://arxiv.org/abs/2503.14456
"""The time mixing of RWKV-7."""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.linear import Linear, low_rank
from attnkit.mixer.base import Tokens
from attnkit.mixer.heads import head_width, in_heads, joined_heads
from attnkit.mixer.recurrence.generalized_delta_rule import generalized_delta_rule
from attnkit.mixer.recurrence.tokens import LinearRecurrence, RecurrentState, in_full_precision, lagged, log_decays, silent
from attnkit.registry import check_positive, mixers, require_at_least

INPUTS = {"receptance": 0.2, "decay": 0.9, "key": 0.7, "value": 0.7, "rate": 0.9, "gate": 0.2}  # exponents of the initial mixtures


@dataclass(frozen=True)
class RWKV7State(RecurrentState):
    """The state of a layer; in the first layer with a value residual, also the values of the call's tokens, until the stack takes them."""

    values: Tensor | None = None  # [B, H, T, N]

    def newest_values(self, count: int) -> tuple[Tensor, "RWKV7State"]:
        """Return the values of the last call's `count` tokens, and the state without them."""
        assert self.values is not None
        assert self.values.shape[2] == count
        return self.values, replace(self, values=None)


@mixers.register("rwkv7")
class RWKV7(LinearRecurrence):
    r"""The time mixing of RWKV-7 (Goose): a delta rule whose rates of decay, removal and writing differ by channel.

    Equation:
        $$S_t = (\mathrm{diag}(w_t) - (a_t \odot \kappa_t) \kappa_t^\top) S_{t-1} + \tilde k_t v_t^\top, \qquad
        y_t = W_O \big(g_t \odot (\mathrm{norm}_h(S_t^\top r_t) + (r_t \odot \rho)^\top \tilde k_t \, v_t)\big)$$
        $$w_t = \exp(-e^{-1/2} \, \sigma(b_w + \ell_w(x_t))), \quad a_t = \sigma(b_a + \ell_a(x_t)), \quad g_t = \ell_g(x_t), \quad
        \tilde k_t = k_t \odot (1 + (a_t - 1) \odot \eta)$$

    Here $r, k, v = W_{r,k,v} x_t$, and $\kappa_t$ is $k_t \odot \xi$, scaled to unit length in each head. Each of the six inputs is
    $x_t + \mu \odot (x_{t-1} - x_t)$ with its own $\mu$. The maps $\ell$ have low ranks, with a tanh inside $\ell_w$ and a sigmoid inside
    $\ell_g$. The norm is a layer norm of each head. With `value_residual`, v moves towards the first layer's values by
    $\sigma(b_v + \ell_v(x_t))$.

    Paper: Peng et al. 2025, https://arxiv.org/abs/2503.14456. Its models have `embedding_norm: true`, no position, `feed_forward: none`
    and `layers` as in the example.

    Initialisation: as for the first layer in the authors' code: the first of the two matrices of each $\ell$ is zero, so $\ell_g$ is
    constant at first, and the other $\ell$ are zero. Other linear maps are as usual (there: smaller, and $W_O$ zero), and the norm's scale
    is one (there: $((l + 1) / L)^{0.7}$ in layer l of L). As there, only $W_{r,k,v}$ and $W_O$ have weight decay.

    Cost per token and head of width N: about $7 N^2$ multiply-adds, plus $6 N$ for each token of its chunk of 32. State: `constant`, $N^2$
    numbers per head and the last token. Training memory grows linearly with the tokens, like that of a projection.

    Args:
        decay_rank: Rank of $\ell_w$ (default: $2.5 \sqrt{D}$, rounded to a positive multiple of 32).
        rate_rank: Rank of $\ell_a$ (default: that of $\ell_w$).
        gate_rank: Rank of $\ell_g$ (default: $5 \sqrt{D}$, rounded in the same way).
        value_residual: Whether to mix in the values of the first layer that sets it; $\ell_v$ has the rank $1.7 \sqrt{D}$, rounded in the
            same way. The first layer mixes its values with themselves, so its $b_v$ and $\ell_v$ are not trained (the authors'
            checkpoints lack them).

    Raises:
        ConfigurationError: `num_heads` is missing or does not divide D, or a number is out of range.

    Example:
        >>> layers = [{"mixer": {"name": "rwkv7", "value_residual": True}}, {"mixer": {"name": "rwkv_channel", "receptance": False}}]
        >>> y, state = RWKV7(d_model=8, num_heads=2)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape, state.recent.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 2, 4, 4]), torch.Size([1, 1, 8]))
    """

    undecayed = ("mixes", "decay", "rate", "gate", "value_gate")

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int | None = None,
        decay_rank: int | None = None,
        rate_rank: int | None = None,
        gate_rank: int | None = None,
        value_residual: bool = False,
        eps: float = 64e-5,
    ) -> None:
        super().__init__()
        check_positive(decay_rank=decay_rank, rate_rank=rate_rank, gate_rank=gate_rank)
        require_at_least(0, eps=eps)
        self.num_heads, _ = head_width("rwkv7", d_model, num_heads)
        decay_rank = _rank(2.5, d_model) if decay_rank is None else decay_rank
        self.mixes = nn.Parameter(torch.empty(len(INPUTS), d_model))
        self.decay_bias, self.rate_bias, self.removed, self.learned, self.bonus = (nn.Parameter(torch.empty(d_model)) for _ in range(5))
        self.value_bias = nn.Parameter(torch.empty(d_model)) if value_residual else None
        self.reset_parameters()
        self.receptance, self.key, self.value = (Linear(d_model, d_model, bias=False) for _ in range(3))
        self.decay = _low_rank(d_model, decay_rank, nn.Tanh())
        self.rate = _low_rank(d_model, decay_rank if rate_rank is None else rate_rank)
        self.gate = _low_rank(d_model, _rank(5.0, d_model) if gate_rank is None else gate_rank, nn.Sigmoid())
        self.value_gate = _low_rank(d_model, _rank(1.7, d_model)) if value_residual else None
        self.norm = nn.GroupNorm(self.num_heads, d_model, eps=eps)
        self.output = Linear(d_model, d_model, bias=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the mixtures, decays from slow to fast over the channels and within each head, and the other parameters per channel."""
        width = len(self.bonus)
        channels, ramp = torch.arange(width), torch.linspace(0, 1, width)
        head = torch.linspace(-1, 1, width // self.num_heads).repeat(self.num_heads)
        for mix, exponent in zip(self.mixes, INPUTS.values(), strict=True):
            mix.copy_(1 - (channels / width) ** exponent)
        self.decay_bias.copy_(-5.5 + 6 * ramp + 2.5 * head * head.abs())
        self.rate_bias.copy_(-0.39 + 0.4 * ramp + 0.3 * head * head.abs())
        self.removed.copy_(0.76 - 0.1 * ramp)
        nn.init.constant_(self.learned, 1.02)
        nn.init.constant_(self.bonus, -0.04)
        if self.value_bias is not None:
            self.value_bias.copy_(0.93 - 0.4 * ramp)

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RWKV7State]:
        """Mix; see `Mixer.forward`."""
        (before,), recent = lagged(x, 1, tokens, None if state is None else state.recent)
        mixed = {name: x.lerp(before, mix) for name, mix in zip(INPUTS, self.mixes.to(x.dtype), strict=True)}
        own = in_heads(self.value(mixed["value"]), self.num_heads)
        value = own
        if self.value_gate is not None:
            moved = (self.value_bias + self.value_gate(mixed["value"])).sigmoid()
            value = own.lerp(own if tokens.first_value is None else tokens.first_value, in_heads(moved, self.num_heads).to(own.dtype))
        query, key, rate, decay = in_full_precision(*(getattr(self, name)(mixed[name]) for name in ("receptance", "key", "rate", "decay")))
        rate, decay = (self.rate_bias + rate).sigmoid(), -math.exp(-0.5) * (self.decay_bias + decay).sigmoid()
        parts = query, key * self.removed, key * (1 + (rate - 1) * self.learned), rate, decay
        query, removed, key, rate, decay = (in_heads(part, self.num_heads) for part in parts)
        removed = silent(F.normalize(removed, dim=-1), tokens, dim=2)
        if tokens.starts is not None:
            removed = removed.masked_fill(tokens.starts[:, None, :, None], 0.0)
        key, decay = silent(key, tokens, dim=2), log_decays(decay, tokens, dim=2)
        (value,) = in_full_precision(value)
        read, memory = generalized_delta_rule(query, key, value, removed, removed * rate, decay, None if state is None else state.memory)
        scale, shift = in_full_precision(self.norm.weight, self.norm.bias)
        read = F.group_norm(joined_heads(read).flatten(0, 1), self.num_heads, scale, shift, self.norm.eps)
        bonus = (query * key * in_heads(self.bonus[None, None], self.num_heads)).sum(-1, keepdim=True) * value
        y = (read.view(x.shape) + joined_heads(bonus)) * self.gate(mixed["gate"])
        is_first = self.value_gate is not None and tokens.first_value is None
        return self.output(y.to(x.dtype)), RWKV7State(memory, recent, own if is_first else None)


class Closed(Linear):
    """A linear map that is zero at first."""

    def reset_parameters(self) -> None:
        """Set the weight to zero."""
        nn.init.zeros_(self.weight)


def _low_rank(d_model: int, rank: int, *inside: nn.Module) -> nn.Sequential:
    return low_rank(Closed(d_model, rank, bias=False), d_model, *inside)


def _rank(factor: float, d_model: int) -> int:
    return max(1, round(factor * math.sqrt(d_model) / 32)) * 32
