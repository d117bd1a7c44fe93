# https://arxiv.org/abs/2406.06484
"""The delta rule: a write replaces the value that the state holds for a key."""

import torch
from torch import Tensor

from attnkit.linear import Linear
from attnkit.mixer.base import Tokens
from attnkit.mixer.heads import head_width, in_heads, joined_heads, writes_in_heads
from attnkit.mixer.recurrence.delta_rule import delta_rule, unit
from attnkit.mixer.recurrence.gated_norm import GatedNorm
from attnkit.mixer.recurrence.short_convolution import ShortConvolution
from attnkit.mixer.recurrence.tokens import Kernel, LinearRecurrence, RecurrentState, WithKernel, in_full_precision, log_decays, silent
from attnkit.registry import check_positive, mixers


@mixers.register("delta_rule")
class DeltaRule(WithKernel, LinearRecurrence):
    r"""DeltaNet: linear attention whose state is corrected towards each new key's value.

    Equation:
        $$S_t = (I - \beta_t k_t k_t^\top) S_{t-1} + \beta_t k_t v_t^\top, \qquad y_t = W_O \, \mathrm{norm}_h(S_t^\top q_t / \sqrt{N})$$

    Here $q, k, v = \mathrm{silu}(\mathrm{conv}(W x))$, with queries and keys scaled to unit length, and $\beta_t = \sigma(W_\beta x_t)$.

    Paper: Schlag et al. 2021, https://arxiv.org/abs/2102.11174; Yang et al. 2024, https://arxiv.org/abs/2406.06484; Grazzi et al. 2024,
    https://arxiv.org/abs/2411.12537 (negative eigenvalues); Siems et al. 2025, https://arxiv.org/abs/2502.10297 (DeltaProduct)

    Initialisation: linear maps as usual, so $\beta$ starts around one half; the convolution as in torch.

    Cost per token and head of widths N and P: about $3 N P + 3 N^2$ multiply-adds, plus $2 (N + P)$ for each token of its chunk of 32.
    State: `constant`, N P numbers per head and K - 1 tokens of the convolution. Training memory grows linearly with the tokens,
    like that of a projection.

    Args:
        key_dim: Width of the queries and keys of all heads together, H N (default: D).
        value_dim: Width of the values of all heads together, H P (default: D).
        num_householders: Number of writes W per token, each with its own key, value and $\beta$: the state is multiplied by a product of
            W Householder matrices (DeltaProduct), at W times the cost of a write.
        negative_eigenvalues: Whether to double $\beta$, which lets the state change sign, as tracking permutations and parity requires.

    Raises:
        ConfigurationError: `num_heads` is missing, or does not divide a width, or `num_householders` is not positive.

    Example:
        >>> y, state = DeltaRule(d_model=8, num_heads=2)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape, state.recent.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 2, 4, 4]), torch.Size([1, 3, 24]))
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        kernel_size: int = 4,
        num_householders: int = 1,
        negative_eigenvalues: bool = False,
        eps: float = 1e-5,
        kernel: Kernel = "torch",
    ) -> None:
        super().__init__()
        check_positive(num_householders=num_householders)
        self.kernel: Kernel = kernel
        key_dim, value_dim = d_model if key_dim is None else key_dim, d_model if value_dim is None else value_dim
        self.num_heads, _ = head_width("delta_rule", key_dim, num_heads)
        value_width = head_width("delta_rule", value_dim, num_heads)[1]
        self.writes, self.largest = num_householders, 2.0 if negative_eigenvalues else 1.0
        self.widths = [key_dim, key_dim * num_householders, value_dim * num_householders]
        self.input = Linear(d_model, sum(self.widths), bias=False)
        self.value_rows = slice(-self.widths[-1], None)  # rows of the weight of `input`; initialisations read it
        self.convolution = ShortConvolution(channels=sum(self.widths), kernel_size=kernel_size, bias=False, activation="silu")
        self.beta = Linear(d_model, self.num_heads * num_householders, bias=False)
        self.norm = GatedNorm(channels=value_dim, group=value_width, eps=eps, scales=value_width, gate="none")
        self.output = Linear(value_dim, d_model, bias=False)

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Mix; see `Mixer.forward`."""
        convolved, recent = self.convolution(self.input(x), tokens, None if state is None else state.recent)
        query, key, value = convolved.split(self.widths, -1)
        query = in_heads(query, self.num_heads)
        key, value = (writes_in_heads(part, self.num_heads, self.writes) for part in (key, value))
        beta, query, key = in_full_precision(in_heads(self.beta(x), self.num_heads), query, key)
        beta = silent(self.largest * beta.sigmoid(), tokens, dim=2)  # [B, H, T, W]
        kept = log_decays(torch.zeros_like(beta[:1, :1, :, :1]), tokens, dim=2)
        query, beta = unit(query) * query.shape[-1] ** -0.5, beta.flatten(2)[..., None]
        before = None if state is None else state.memory
        read, memory = delta_rule(query, unit(key), value, beta, kept, before, writes=self.writes, kernel=self.kernel_now)
        return self.output(self.norm(joined_heads(read)).to(x.dtype)), RecurrentState(memory, recent)
