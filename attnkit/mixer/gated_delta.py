# https://arxiv.org/abs/2412.06464
"""The gated delta rule: the state is corrected towards each new key's value, and decays."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.linear import Linear, low_rank
from attnkit.mixer.base import Tokens
from attnkit.mixer.heads import head_width, in_heads, joined_heads, writes_in_heads
from attnkit.mixer.recurrence.delta_rule import delta_rule, unit
from attnkit.mixer.recurrence.gated_norm import GatedNorm
from attnkit.mixer.recurrence.short_convolution import ShortConvolution
from attnkit.mixer.recurrence.steps import draw_step_bias
from attnkit.mixer.recurrence.tokens import Kernel, LinearRecurrence, RecurrentState, WithKernel, in_full_precision, log_decays, silent
from attnkit.registry import ConfigurationError, check_positive, mixers


@mixers.register("gated_delta")
class GatedDelta(WithKernel, LinearRecurrence):
    r"""Gated DeltaNet (Qwen3-Next): the state of `delta_rule` also decays, at rates that depend on the token.

    Equation:
        $$S_t = (I - \beta_t k_t k_t^\top) \, \alpha_t S_{t-1} + \beta_t k_t v_t^\top, \qquad
        y_t = W_O \, (\mathrm{norm}_h(S_t^\top q_t / \sqrt{N}) \odot \phi(W_G x_t)), \qquad
        \alpha_t = \exp(-A \, \mathrm{softplus}(W_\alpha x_t + b)), \qquad \beta_t = \sigma(W_\beta x_t)$$

    Here $q, k, v = \mathrm{silu}(\mathrm{conv}(W x))$, with queries and keys scaled to unit length, and $\alpha_t$ is a number per head or
    a diagonal matrix. With `decay_bound` c, $\alpha_t = \exp(-c \, \sigma(A (W_\alpha x_t + b)))$ is at least $e^{-c}$. Kimi Delta
    Attention is `{decay: channel, gate_rank: P, gate_activation: sigmoid}`, with P as below.

    Paper: Yang et al. 2024, https://arxiv.org/abs/2412.06464; Grazzi et al. 2024, https://arxiv.org/abs/2411.12537 (negative eigenvalues);
    Kimi Team 2025, https://arxiv.org/abs/2510.26692 (`decay: channel`); Siems et al. 2025, https://arxiv.org/abs/2502.10297 (DeltaProduct)

    Initialisation: A uniform in [0.01, 16], in [1, 16] with `decay: channel`, or 1 with `decay_bound`, and the softplus of b log-uniform
    in [0.001, 0.1], as in the authors' code; linear maps as usual (there: $W_\alpha$ smaller by a factor of 1.6 to 2.4).

    Cost per token and head of widths N and P: about $3 N P + 3 N^2$ multiply-adds, plus $2 (N + P)$ for each token of its chunk of 32.
    State: `constant`, N P numbers per head and K - 1 tokens of the convolution. Training memory grows linearly with the tokens,
    like that of a projection.

    Args:
        num_heads: Number of value heads H.
        num_key_heads: Number of query and key heads, a divisor of H (default: H).
        key_dim: Width of the queries and keys of all heads together (default: D / H for each key head).
        value_dim: Width of the values of all heads together, H P (default: D).
        decay: Whether a `head` decays as a whole, or each `channel` of its keys at its own rate.
        decay_bound: The bound c on the logarithm of a decay (Ling 3.0, GLM-5.3: 5; default: none).
        gate_rank: Rank of $W_G$ and, with `decay: channel`, of $W_\alpha$, each of which is then a product of two maps (default: full
            rank).
        gate_activation: Name of $\phi$.
        num_householders: Number of writes W per token, each with its own key, value and $\beta$: the state is multiplied by a product of
            W Householder matrices (DeltaProduct), at W times the cost of a write.
        negative_eigenvalues: Whether to double $\beta$, which lets the state change sign, as tracking permutations and parity requires.

    Raises:
        ConfigurationError: `num_heads` is missing or does not divide a width, `num_key_heads` does not divide `num_heads`, or `gate_rank`,
            `decay_bound` or `num_householders` is not positive.

    Example:
        >>> y, state = GatedDelta(d_model=8, num_heads=2, num_key_heads=1)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape, state.recent.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 2, 4, 4]), torch.Size([1, 3, 16]))
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int | None = None,
        num_key_heads: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        kernel_size: int = 4,
        decay: Literal["head", "channel"] = "head",
        decay_bound: float | None = None,
        gate_rank: int | None = None,
        gate_activation: str = "silu",
        num_householders: int = 1,
        negative_eigenvalues: bool = False,
        eps: float = 1e-6,
        kernel: Kernel = "torch",
    ) -> None:
        super().__init__()
        check_positive(gate_rank=gate_rank, decay_bound=decay_bound, num_householders=num_householders)
        self.kernel: Kernel = kernel
        value_dim = d_model if value_dim is None else value_dim
        self.num_heads, value_width = head_width("gated_delta", value_dim, num_heads)
        self.num_key_heads = self.num_heads if num_key_heads is None else num_key_heads
        if self.num_key_heads < 1 or self.num_heads % self.num_key_heads:
            raise ConfigurationError(f"num_key_heads ({self.num_key_heads}) must be positive and divide num_heads ({self.num_heads})")
        key_dim = d_model // self.num_heads * self.num_key_heads if key_dim is None else key_dim
        _, key_width = head_width("gated_delta", key_dim, self.num_key_heads)
        decays = self.num_heads * (key_width if decay == "channel" else 1)
        self.writes, self.largest = num_householders, 2.0 if negative_eigenvalues else 1.0
        self.by_channel, self.decay_bound = decay == "channel", decay_bound
        self.log_rate = nn.Parameter(torch.empty(self.num_heads))
        self.decay_bias = nn.Parameter(torch.empty(decays))
        self.reset_parameters()
        self.widths = [key_dim, key_dim * num_householders, value_dim * num_householders]
        self.input = Linear(d_model, sum(self.widths), bias=False)
        self.value_rows = slice(-self.widths[-1], None)  # rows of the weight of `input`; initialisations read it
        self.convolution = ShortConvolution(channels=sum(self.widths), kernel_size=kernel_size, bias=False, activation="silu")
        self.beta = Linear(d_model, self.num_heads * num_householders, bias=False)
        self.decay = _map(d_model, decays, gate_rank if decay == "channel" else None)
        self.gate = _map(d_model, value_dim, gate_rank)
        self.norm = GatedNorm(channels=value_dim, group=value_width, eps=eps, scales=value_width, activation=gate_activation)
        self.output = Linear(value_dim, d_model, bias=False)

    def reset_parameters(self) -> None:
        """Draw the rates A, and biases that make decays slow at first."""
        with torch.no_grad():
            if self.decay_bound is None:
                self.log_rate.uniform_(1 if self.by_channel else 0.01, 16).log_()
            else:
                self.log_rate.zero_()
        draw_step_bias(self.decay_bias)

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Mix; see `Mixer.forward`."""
        convolved, recent = self.convolution(self.input(x), tokens, None if state is None else state.recent)
        query, key, value = convolved.split(self.widths, -1)
        query, key = in_heads(query, self.num_key_heads), writes_in_heads(key, self.num_key_heads, self.writes)
        value = writes_in_heads(value, self.num_heads, self.writes)
        query, key, beta, decay = in_full_precision(query, key, self.beta(x), self.decay(x))
        beta = silent(in_heads(self.largest * beta.sigmoid(), self.num_heads), tokens, dim=2).flatten(2)[..., None]
        rates = log_decays(self._log_decay(decay + self.decay_bias), tokens, dim=2)
        query = unit(query) * query.shape[-1] ** -0.5
        query, key = (part.repeat_interleave(self.num_heads // self.num_key_heads, 1) for part in (query, unit(key)))
        before = None if state is None else state.memory
        read, memory = delta_rule(query, key, value, beta, rates, before, writes=self.writes, kernel=self.kernel_now)
        return self.output(self.norm(joined_heads(read), self.gate(x)).to(x.dtype)), RecurrentState(memory, recent)

    def _log_decay(self, logits: Tensor) -> Tensor:
        """Return the logarithms of the decays [B, H, T, 1 or N], given the logits [B, T, H or H N]."""
        rate = self.log_rate.to(logits.dtype).exp().view(-1, 1, 1)
        if self.decay_bound is None:
            return -rate * in_heads(F.softplus(logits), self.num_heads)
        return -self.decay_bound * torch.sigmoid(rate * in_heads(logits, self.num_heads))


def _map(d_model: int, width: int, rank: int | None) -> nn.Module:
    if rank is None:
        return Linear(d_model, width, bias=False)
    return low_rank(Linear(d_model, rank, bias=False), width)
