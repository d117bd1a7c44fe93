# https://arxiv.org/abs/2405.04517
"""The sLSTM: an LSTM cell with an exponential input gate, a normalised state, and recurrent weights within each head."""

import torch
from torch import Tensor, nn

from attnkit.linear import BlockDiagonal
from attnkit.mixer.base import Tokens
from attnkit.mixer.heads import head_width
from attnkit.mixer.recurrence.exponential_cell import exponential_cell
from attnkit.mixer.recurrence.gated_norm import GatedNorm
from attnkit.mixer.recurrence.short_convolution import ShortConvolution
from attnkit.mixer.recurrence.tokens import LinearRecurrence, RecurrentState, in_full_precision
from attnkit.registry import mixers


@mixers.register("slstm")
class SLSTM(LinearRecurrence):
    r"""The sLSTM of xLSTM: gates read the last output of their head, and the output is a weighted mean of the values written.

    Equation:
        $$c_t = f_t \odot c_{t-1} + i_t \odot \tanh(W_z x_t + R_z h_{t-1} + b_z), \qquad n_t = f_t \odot n_{t-1} + i_t, \qquad
        h_t = o_t \odot c_t / n_t, \qquad y_t = \mathrm{norm}_h(h_t)$$

    Here $i_t = \exp(W_i u_t + R_i h_{t-1} + b_i)$, $f_t = \sigma(W_f u_t + R_f h_{t-1} + b_f)$, $o_t = \sigma(W_o x_t + R_o h_{t-1} +
    b_o)$ and $u = \mathrm{silu}(\mathrm{conv}(x))$. All matrices are block-diagonal: heads do not read each other, but the feed-forward
    network that follows reads all. The norm is a layer norm of each head, with a learned scale per channel. c and n are kept relative to
    the largest input gate, which decays like them, so no exponent is above zero.

    Paper: Beck et al. 2024, https://arxiv.org/abs/2405.04517; its place in a layer is that of the authors' code: the residual stream has
    a `pre_norm`, and a `glu` with `gelu` of width 4/3 D follows. To copy its weights: its `fgate` gives the logits of i, its `igate` those
    of f, and its norm adds 1 to the scale.

    Initialisation: $b_f$ falls from 5 to -7 over the channels of a head, as in the first block of the authors' code (less steeply in later
    ones there), and R is zero; W is normal with variance 1 / fan-in (there: 2 / (5 D)).

    Cost per token: $8 D W$ multiply-adds for heads of width W, one token after another even in training. State: `constant`, 4 numbers per
    channel, and K - 1 tokens of the convolution. Training keeps about 14 numbers per token and channel.

    Args:
        num_heads: Number of blocks in each matrix.

    Raises:
        ConfigurationError: `num_heads` is missing or does not divide `d_model`.

    Example:
        >>> y, state = SLSTM(d_model=8, num_heads=2)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape, state.recent.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 4, 2, 4]), torch.Size([1, 3, 8]))
    """

    def __init__(self, *, d_model: int, num_heads: int | None = None, kernel_size: int = 4, eps: float = 1e-5) -> None:
        super().__init__()
        num_heads, width = head_width("slstm", d_model, num_heads)
        self.convolution = ShortConvolution(channels=d_model, kernel_size=kernel_size, bias=True, activation="silu")
        self.input_gate, self.cell_input, self.output_gate = (BlockDiagonal(num_heads, width) for _ in range(3))
        self.forget_gate = ForgetGate(num_heads, width)
        self.recurrent = nn.Parameter(torch.empty(num_heads, width, 4, width))  # for i, f, z and o
        self.norm = GatedNorm(channels=d_model, group=width, eps=eps, scales=d_model, gate="none", centered=True)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the recurrent weights to zero."""
        nn.init.zeros_(self.recurrent)

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Mix; see `Mixer.forward`."""
        convolved, recent = self.convolution(x, tokens, None if state is None else state.recent)
        logits = self.input_gate(convolved), self.forget_gate(convolved), self.cell_input(x), self.output_gate(x)
        given = torch.unflatten(torch.stack(in_full_precision(*logits), 2), -1, (len(self.recurrent), -1))  # [B, T, 4, H, W]
        recurrent = self.recurrent.to(given.dtype)
        hidden, memory = exponential_cell(given, recurrent, tokens, None if state is None else state.memory)
        return self.norm(hidden.flatten(2)).to(x.dtype), RecurrentState(memory, recent)


class ForgetGate(BlockDiagonal):
    """The map to the logits of forget gates, some of which are open at first and others shut."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weight; set the biases of each head from 5 down to -7."""
        super().reset_parameters()
        width = self.bias.shape[1]
        self.bias.copy_(5 - 12 * (torch.arange(width) / max(1, width - 1)) ** 0.3)
