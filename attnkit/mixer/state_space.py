# https://arxiv.org/abs/2405.21060
"""The state-space model of Mamba-2: each head has one decay per token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.linear import Linear
from attnkit.mixer.base import Tokens
from attnkit.mixer.heads import head_width, in_heads, joined_heads
from attnkit.mixer.recurrence.gated_norm import Gate, GatedNorm
from attnkit.mixer.recurrence.outer_product import outer_product
from attnkit.mixer.recurrence.short_convolution import ShortConvolution
from attnkit.mixer.recurrence.steps import draw_step_bias
from attnkit.mixer.recurrence.tokens import Kernel, LinearRecurrence, RecurrentState, WithKernel, in_full_precision, log_decays, silent
from attnkit.registry import ConfigurationError, check_positive, mixers, refuse_unread


@mixers.register("state_space")
class StateSpace(WithKernel, LinearRecurrence):
    r"""Mamba-2 (SSD): a state-space model whose input, output and decay, one per head, depend on the token.

    Equation:
        $$S_t = e^{-A \Delta_t} S_{t-1} + \Delta_t B_t u_t^\top, \qquad
        y_t = W_O \, \mathrm{norm}((S_t^\top C_t + D \odot u_t) \odot \mathrm{silu}(W_Z x_t))$$

    Here $u, B, C = \mathrm{silu}(\mathrm{conv}(W x))$ and $\Delta_t = \mathrm{softplus}(W_\Delta x_t + b)$.

    Paper: Dao and Gu 2024, https://arxiv.org/abs/2405.21060

    Initialisation: A uniform in [1, 16], D one, and b such that its softplus is log-uniform in [0.001, 0.1], as in the paper's code; linear
    maps as usual (there: $W_\Delta$ smaller by a factor of 2.4, so that $\Delta$ starts, on average, half as large).

    Cost per token and head of widths N and P: $2 N P$ multiply-adds, plus $N + P$ for each token of its chunk of 32. State: `constant`,
    N P numbers per head and K - 1 tokens of the convolution. In training, memory grows linearly with the tokens, like that of a projection.

    Args:
        d_model: Width.
        num_heads: Number of heads H (default: one for each 64 channels of `inner_dim`).
        inner_dim: Width of $u$, H P (default: twice `d_model`).
        state_dim: Width of $B$ and $C$ in a head, N.
        num_groups: Number of distinct $B$ and $C$, each shared by H / num_groups heads, and number of groups in the norm.
        convolution_bias: Whether the convolution has a bias.
        projection_bias: Whether the projections have biases.
        norm: Whether to normalise the gated output.
        norm_before_gate: Whether to normalise before the gate instead of after it.

    Raises:
        ConfigurationError: `num_heads` does not divide `inner_dim`, `num_groups` does not divide `num_heads`, options of the norm are
            set without it, or a width is not positive.

    Example:
        >>> y, state = StateSpace(d_model=8, num_heads=2, state_dim=16)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape, state.recent.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 2, 16, 8]), torch.Size([1, 3, 48]))
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int | None = None,
        inner_dim: int | None = None,
        state_dim: int = 128,
        num_groups: int = 1,
        kernel_size: int = 4,
        convolution_bias: bool = True,
        projection_bias: bool = False,
        norm: bool = True,
        norm_before_gate: bool = False,
        eps: float = 1e-5,
        kernel: Kernel = "torch",
    ) -> None:
        super().__init__()
        self.kernel: Kernel = kernel
        check_positive(inner_dim=inner_dim, state_dim=state_dim)
        inner_dim = 2 * d_model if inner_dim is None else inner_dim
        self.num_heads, self.num_groups = max(1, inner_dim // 64) if num_heads is None else num_heads, num_groups
        head_width("state_space", inner_dim, self.num_heads)
        if num_groups < 1 or self.num_heads % num_groups:
            raise ConfigurationError(f"num_groups ({num_groups}) must be positive and divide num_heads ({self.num_heads})")
        self.log_rate = nn.Parameter(torch.empty(self.num_heads))
        self.step_bias = nn.Parameter(torch.empty(self.num_heads))
        self.skip = nn.Parameter(torch.empty(self.num_heads))
        self.reset_parameters()
        self.widths = [inner_dim, num_groups * state_dim, num_groups * state_dim]
        convolved = sum(self.widths)
        self.input = Linear(d_model, convolved, bias=projection_bias)
        self.value_rows = slice(inner_dim)  # rows of the weight of `input`; initialisations read it
        self.convolution = ShortConvolution(channels=convolved, kernel_size=kernel_size, bias=convolution_bias, activation="silu")
        self.step = Linear(d_model, self.num_heads, bias=projection_bias)
        self.gate = Linear(d_model, inner_dim, bias=projection_bias)
        if not norm:
            refuse_unread(StateSpace, "without the norm", norm_before_gate=norm_before_gate, eps=eps)
        self.norm: GatedNorm | None = None
        if norm:
            gate: Gate = "after" if norm_before_gate else "before"
            self.norm = GatedNorm(channels=inner_dim, group=inner_dim // num_groups, eps=eps, scales=inner_dim, gate=gate)
        self.output = Linear(inner_dim, d_model, bias=projection_bias)

    def reset_parameters(self) -> None:
        """Draw the rates A and the biases of the step sizes, and set the skips D to one."""
        with torch.no_grad():
            self.log_rate.uniform_(1, 16).log_()
        draw_step_bias(self.step_bias)
        nn.init.ones_(self.skip)

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Mix; see `Mixer.forward`."""
        convolved, recent = self.convolution(self.input(x), tokens, None if state is None else state.recent)
        u, write, read = convolved.split(self.widths, -1)
        u, step = in_full_precision(in_heads(u, self.num_heads), in_heads(self.step(x), self.num_heads))
        write, read = (in_heads(part, self.num_groups) for part in (write, read))
        step = F.softplus(step + self.step_bias.view(-1, 1, 1))  # [B, H, T, 1]
        rates = log_decays(-self.log_rate.to(step.dtype).exp().view(-1, 1, 1) * step, tokens, dim=2)
        value = silent(step * u, tokens, dim=2)
        y, memory = outer_product(read, write, value, rates, None if state is None else state.memory, kernel=self.kernel_now)
        y, gate = joined_heads(y + self.skip.view(-1, 1, 1) * u), self.gate(x)
        y = y * F.silu(gate) if self.norm is None else self.norm(y, gate)
        return self.output(y.to(x.dtype)), RecurrentState(memory, recent)
