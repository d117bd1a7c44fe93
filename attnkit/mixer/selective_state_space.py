# https://arxiv.org/abs/2312.00752
"""The state-space model of Mamba: each element of the state has its own decay."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.linear import Linear
from attnkit.mixer.base import Tokens
from attnkit.mixer.recurrence.selective_scan import selective_scan
from attnkit.mixer.recurrence.short_convolution import ShortConvolution
from attnkit.mixer.recurrence.steps import StepSize
from attnkit.mixer.recurrence.tokens import LinearRecurrence, RecurrentState, in_full_precision, silent
from attnkit.norm import Norm
from attnkit.registry import NormSpec, check_positive, mixers, norms


@mixers.register("selective_state_space")
class SelectiveStateSpace(LinearRecurrence):
    r"""Mamba (S6): a state-space model whose input, output and decays, one per element of the state, depend on the token.

    Equation:
        $$h_t = e^{-A \Delta_t} \odot h_{t-1} + \Delta_t u_t B_t^\top, \qquad
        y_t = W_O \, ((h_t C_t + D \odot u_t) \odot \mathrm{silu}(W_Z x_t))$$

    Here $u = \mathrm{silu}(\mathrm{conv}(W x))$, $[r, B, C] = W_S u$ and $\Delta = \mathrm{softplus}(W_\Delta r + b)$.

    Paper: Gu and Dao 2023, https://arxiv.org/abs/2312.00752

    Initialisation: A is 1, ..., N in each channel, D one, and b such that $\Delta$ is log-uniform in [0.001, 0.1]. A and D have no weight
    decay, as in the paper's code.

    Cost per token and channel: about 10 N operations, none of which is a matrix product. State: `constant`, N numbers per channel and
    K - 1 tokens of the convolution. Training keeps one state for each block of 8 to 256 tokens, and recomputes the states
    in between.

    Args:
        d_model: Width.
        inner_dim: Width of $u$ (default: twice `d_model`).
        state_dim: Number of state elements per channel N.
        step_rank: Width of $r$ (default: `d_model` / 16, rounded up).
        convolution_bias: Whether the convolution has a bias.
        projection_bias: Whether the first and the last projections have biases.
        parameter_norm: The norm applied to r, B and C, each with its own scales (Jamba; default: none).

    Raises:
        ConfigurationError: A width, or `state_dim`, is not positive.

    Example:
        >>> y, state = SelectiveStateSpace(d_model=8)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape, state.recent.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 16, 16]), torch.Size([1, 3, 16]))
    """

    undecayed = ("log_rate",)

    def __init__(
        self,
        *,
        d_model: int,
        inner_dim: int | None = None,
        state_dim: int = 16,
        step_rank: int | None = None,
        kernel_size: int = 4,
        convolution_bias: bool = True,
        projection_bias: bool = False,
        parameter_norm: NormSpec | None = None,
    ) -> None:
        super().__init__()
        check_positive(inner_dim=inner_dim, state_dim=state_dim, step_rank=step_rank)
        inner_dim = 2 * d_model if inner_dim is None else inner_dim
        step_rank = -(-d_model // 16) if step_rank is None else step_rank
        self.widths = [step_rank, state_dim, state_dim]
        self.log_rate = nn.Parameter(torch.empty(inner_dim, state_dim))
        self.skip = nn.Parameter(torch.empty(inner_dim))
        self.reset_parameters()
        self.input, self.gate = (Linear(d_model, inner_dim, bias=projection_bias) for _ in range(2))
        self.convolution = ShortConvolution(channels=inner_dim, kernel_size=kernel_size, bias=convolution_bias, activation="silu")
        self.select = Linear(inner_dim, sum(self.widths), bias=False)
        self.step = StepSize(step_rank, inner_dim)
        self.output = Linear(inner_dim, d_model, bias=projection_bias)
        self.norms: nn.ModuleList | None = None
        if parameter_norm is not None:
            built: list[Norm] = [norms.build(parameter_norm, d_model=width) for width in self.widths]
            self.norms = nn.ModuleList(built)

    def reset_parameters(self) -> None:
        """Set the rates A to 1, ..., N, and the skips D to one."""
        with torch.no_grad():
            self.log_rate.copy_(torch.arange(1, self.log_rate.shape[1] + 1).log().expand_as(self.log_rate))
        nn.init.ones_(self.skip)

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Mix; see `Mixer.forward`."""
        u, recent = self.convolution(self.input(x), tokens, None if state is None else state.recent)
        selected = self.select(u).split(self.widths, -1)
        if self.norms is not None:
            selected = [norm(part) for norm, part in zip(self.norms, selected, strict=True)]
        rank, write, read = selected
        u, write, read, step, gate = in_full_precision(u, write, read, self.step(rank), self.gate(x))
        with torch.autocast(x.device.type, enabled=False):
            step = silent(F.softplus(step), tokens, dim=1)
            rate = self.log_rate.to(step.dtype).exp()
            start = rate.new_zeros(len(x), *rate.shape) if state is None else state.memory
            kept = None if tokens.starts is None else (~tokens.starts).to(step.dtype)
            y, memory = selective_scan(step, rate, u, write, read, kept, start)
            y = y + self.skip * u
            y = y * F.silu(gate)
        return self.output(y.to(x.dtype)), RecurrentState(memory, recent)
