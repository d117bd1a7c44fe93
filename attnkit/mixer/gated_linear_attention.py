# https://arxiv.org/abs/2312.06635
"""Gated linear attention: each channel of the keys has a decay that depends on the token."""

import torch.nn.functional as F
from torch import Tensor

from attnkit.linear import Linear, low_rank
from attnkit.mixer.base import Tokens
from attnkit.mixer.heads import head_width, in_heads, joined_heads
from attnkit.mixer.recurrence.gated_norm import GatedNorm
from attnkit.mixer.recurrence.outer_product import outer_product
from attnkit.mixer.recurrence.tokens import Kernel, LinearRecurrence, RecurrentState, WithKernel, in_full_precision, log_decays, silent
from attnkit.registry import check_positive, mixers


@mixers.register("gated_linear_attention")
class GatedLinearAttention(WithKernel, LinearRecurrence):
    r"""Gated linear attention (GLA): each row of the state decays at a rate that depends on the token.

    Equation:
        $$S_t = \mathrm{diag}(\alpha_t) S_{t-1} + k_t v_t^\top, \quad \alpha_t = \sigma(W_2 W_1 x_t + b)^{1 / \tau}, \quad
        y_t = W_O \, (\mathrm{norm}_h(S_t^\top q_t / \sqrt{N}) \odot \mathrm{silu}(W_G x_t))$$

    Paper: Yang et al. 2023, https://arxiv.org/abs/2312.06635

    Initialisation: b is zero, so $\alpha$ starts near $2^{-1/\tau}$; linear maps as usual (the authors' code: smaller by $2^{-2.5}$).

    Cost per token and head of widths N and P: $2 N P$ multiply-adds, plus $N + P$ for each token of its chunk of 32. State: `constant`,
    N P numbers per head. In training, memory grows linearly with the tokens, like that of a projection.

    Args:
        key_dim: Width of the queries and keys of all heads together, H N (default: D / 2).
        value_dim: Width of the values of all heads together, H P (default: D).
        gate_rank: Width between $W_1$ and $W_2$.
        temperature: $\tau$; the larger, the more slowly tokens are forgotten.

    Raises:
        ConfigurationError: `num_heads` is missing or does not divide a width, or a number is out of range.

    Example:
        >>> import torch
        >>> y, state = GatedLinearAttention(d_model=8, num_heads=2)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 2, 2, 4]))
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        gate_rank: int = 16,
        temperature: float = 16.0,
        eps: float = 1e-5,
        kernel: Kernel = "torch",
    ) -> None:
        super().__init__()
        check_positive(gate_rank=gate_rank, temperature=temperature)
        self.kernel: Kernel = kernel
        key_dim, value_dim = d_model // 2 if key_dim is None else key_dim, d_model if value_dim is None else value_dim
        self.num_heads, width = head_width("gated_linear_attention", key_dim, num_heads)
        self.scale, self.temperature = width**-0.5, temperature
        value_width = head_width("gated_linear_attention", value_dim, num_heads)[1]
        self.query, self.key = (Linear(d_model, key_dim, bias=False) for _ in range(2))
        self.value, self.gate = (Linear(d_model, value_dim, bias=False) for _ in range(2))
        self.decay = low_rank(Linear(d_model, gate_rank, bias=False), key_dim, bias=True)
        self.norm = GatedNorm(channels=value_dim, group=value_width, eps=eps, scales=value_width)
        self.output = Linear(value_dim, d_model, bias=False)

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Mix; see `Mixer.forward`."""
        query, key, value, gate = (in_heads(part(x), self.num_heads) for part in (self.query, self.key, self.value, self.decay))
        (gate,) = in_full_precision(gate)
        rates = log_decays(F.logsigmoid(gate) / self.temperature, tokens, dim=2)
        key = silent(key, tokens, dim=2)
        read, memory = outer_product(query * self.scale, key, value, rates, None if state is None else state.memory, kernel=self.kernel_now)
        return self.output(self.norm(joined_heads(read), self.gate(x)).to(x.dtype)), RecurrentState(memory)
