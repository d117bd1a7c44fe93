# https://arxiv.org/abs/2405.04517
"""The mLSTM: an LSTM cell whose state is a matrix, with an exponential input gate."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.linear import Linear
from attnkit.mixer.base import Tokens
from attnkit.mixer.heads import head_width, in_heads, joined_heads
from attnkit.mixer.recurrence.gated_norm import GatedNorm
from attnkit.mixer.recurrence.outer_product import outer_product
from attnkit.mixer.recurrence.scan import EMPTY
from attnkit.mixer.recurrence.tokens import LinearRecurrence, RecurrentState, in_full_precision, log_decays, relative_to_largest
from attnkit.registry import check_positive, mixers


@mixers.register("mlstm")
class MLSTM(LinearRecurrence):
    r"""The mLSTM of xLSTM: linear attention with a forget gate per head, and an exponential input gate.

    Equation:
        $$C_t = f_t C_{t-1} + i_t k_t v_t^\top, \qquad n_t = f_t n_{t-1} + i_t k_t, \qquad
        h_t = \frac{C_t^\top q_t / \sqrt{N}}{\max(|n_t^\top q_t / \sqrt{N}|, 1)}, \qquad
        y_t = W_O (\sigma(W_G x_t) \odot \mathrm{norm}_h(h_t))$$

    Here $i_t = \exp(c(w_i^\top x_t + b_i))$, $f_t = \sigma(c(w_f^\top x_t + b_f))$, and $c(z) = s \tanh(z / s)$ with the softcap s. The
    norm is a layer norm of each head, with a learned scale per channel. C and n are kept relative to the largest input gate, which decays
    like them, so no exponent is above zero.

    Paper: Beck et al. 2024, https://arxiv.org/abs/2405.04517; its place in a layer, the softcap and the defaults are those of xLSTM 7B,
    https://arxiv.org/abs/2503.13427: the residual stream has a `pre_norm`, and a `glu` follows.

    Initialisation: $w_i$ and $w_f$ are zero, $b_i = -10$, and $b_f$ rises from 3 to 6 over the heads.

    Cost per token and head of widths N and P: $2 N P$ multiply-adds, plus $N + P$ for each token of its chunk of 32. State: `constant`,
    N (P + 2) numbers per head. In training, memory grows linearly with the tokens, like that of a projection.

    Args:
        key_dim: Width of the queries and keys of all heads together, H N (default: D / 2).
        value_dim: Width of the values of all heads together, H P (default: D).
        softcap: Bound s of the logits of i and f (None: no bound).

    Raises:
        ConfigurationError: `num_heads` is missing or does not divide a width, or a number is out of range.

    Example:
        >>> y, state = MLSTM(d_model=8, num_heads=2)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 2, 2, 6]))
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        softcap: float | None = 15.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        check_positive(softcap=softcap)
        key_dim, value_dim = d_model // 2 if key_dim is None else key_dim, d_model if value_dim is None else value_dim
        self.num_heads, self.key_width = head_width("mlstm", key_dim, num_heads)
        value_width = head_width("mlstm", value_dim, num_heads)[1]
        self.softcap = softcap
        self.query, self.key = (Linear(d_model, key_dim, bias=False) for _ in range(2))
        self.value, self.gate = (Linear(d_model, value_dim, bias=False) for _ in range(2))
        self.input_gate, self.forget_gate = InputGate(d_model, self.num_heads), ForgetGate(d_model, self.num_heads)
        self.norm = GatedNorm(channels=value_dim, group=value_width, eps=eps, scales=value_dim, activation="sigmoid", centered=True)
        self.output = Linear(value_dim, d_model, bias=False)

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Mix; see `Mixer.forward`."""
        query, key, value = (in_heads(part(x), self.num_heads) for part in (self.query, self.key, self.value))
        query, key, value, *gates = in_full_precision(query, key, value, self.input_gate(x), self.forget_gate(x))
        if self.softcap is not None:
            gates = [self.softcap * torch.tanh(gate / self.softcap) for gate in gates]
        opened, kept = (in_heads(gate, self.num_heads) for gate in gates)  # [B, H, T, 1]
        rates = log_decays(F.logsigmoid(kept), tokens, dim=2)
        start = torch.full_like(opened[:, :, 0], EMPTY) if state is None else state.memory[:, :, 0, -1:]
        rates, weight, largest, _ = relative_to_largest(rates, opened, start, tokens, dim=2)
        memory = None if state is None else state.memory[..., :-1]
        read, memory = outer_product(query * self.key_width**-0.5, key * weight, F.pad(value, (0, 1), value=1.0), rates, memory)
        read = read[..., :-1] / torch.maximum(read[..., -1:].abs(), torch.exp(-largest))
        memory = torch.cat([memory, largest[:, :, -1:].expand(*memory.shape[:-1], 1)], -1)
        return self.output(self.norm(joined_heads(read), self.gate(x)).to(x.dtype)), RecurrentState(memory)


class InputGate(Linear):
    """The linear map to the logits of input gates, which are closed at first."""

    def reset_parameters(self) -> None:
        """Set the weight to zero, and the bias to -10."""
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, -10.0)


class ForgetGate(Linear):
    """The linear map to the logits of forget gates, which are open at first."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the weight to zero, and the biases to values from 3 to 6."""
        nn.init.zeros_(self.weight)
        self.bias.copy_(torch.linspace(3.0, 6.0, self.out_features))
