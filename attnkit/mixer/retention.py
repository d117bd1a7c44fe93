# https://arxiv.org/abs/2307.08621
"""Retention: linear attention with a fixed decay for each head."""

from typing import Literal

import torch
from torch import Tensor

from attnkit.feed_forward.base import make_activation
from attnkit.linear import Linear
from attnkit.mixer.base import Tokens
from attnkit.mixer.heads import head_width, in_heads, joined_heads
from attnkit.mixer.recurrence.gated_norm import GatedNorm
from attnkit.mixer.recurrence.outer_product import outer_product
from attnkit.mixer.recurrence.tokens import Kernel, LinearRecurrence, RecurrentState, WithKernel, log_decays, silent
from attnkit.registry import ConfigurationError, mixers


@mixers.register("retention")
class Retention(WithKernel, LinearRecurrence):
    r"""Multi-scale retention: each head forgets at its own rate, and its output is normalised and gated.

    Equation:
        $$S_t = \gamma_h S_{t-1} + k_t v_t^\top, \qquad y_t = W_O \, (\mathrm{norm}_h(S_t^\top q_t) \odot \phi_g(W_G x_t))$$

    Here $q = \phi(W_Q x)$, $k = \phi(W_K x) / \sqrt{N}$ (rotated by rotary positions) and $v = \phi(W_V x)$.

    Paper: Sun et al. 2023, https://arxiv.org/abs/2307.08621. Lightning attention (Qin et al. 2024, https://arxiv.org/abs/2401.04658) as in
    MiniMax-01 is `{activation: silu, gate_activation: sigmoid, norm_over: all, value_dim: D, scale: 1.0, decays: [...]}`.

    Initialisation: linear maps as usual (the authors' code: all but $W_O$ smaller by $2^{-2.5}$).

    Cost per token and head of widths N and P: $2 N P$ multiply-adds, plus $N + P$ for each token of its chunk of 32. State: `constant`,
    N P numbers per head. In training, memory grows linearly with the tokens, like that of a projection.

    Args:
        head_dim: Width of queries and keys N (default: D / H).
        value_dim: Width of the values of all heads together (default: 2 D).
        decays: $\gamma_h$ of each head, in (0, 1] (default: $1 - 2^{-5-h}$).
        activation: Name of $\phi$.
        gate_activation: Name of $\phi_g$.
        norm_over: Whether to normalise each `head`, without learned scales, or `all` heads together, with a scale for each channel.
        scale: A factor of the keys (default: $1 / \sqrt{N}$).

    Raises:
        ConfigurationError: `num_heads` is missing or does not divide a width, or `decays` does not have one number in (0, 1] for each
            head; or, in the forward pass, the positions are a bias.

    Example:
        >>> y, state = Retention(d_model=8, num_heads=2)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 2, 4, 8]))
    """

    reads_positions = frozenset({"rotation"})

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        decays: list[float] | None = None,
        activation: str = "identity",
        gate_activation: str = "silu",
        norm_over: Literal["head", "all"] = "head",
        scale: float | None = None,
        eps: float = 1e-6,
        kernel: Kernel = "torch",
    ) -> None:
        super().__init__()
        self.kernel: Kernel = kernel
        self.num_heads, width = head_width("retention", d_model, num_heads, head_dim)
        inner = 2 * d_model if value_dim is None else value_dim
        value_width = head_width("retention", inner, num_heads)[1]
        if decays is not None and (len(decays) != self.num_heads or not all(0 < d <= 1 for d in decays)):
            raise ConfigurationError(f"decays must be a number in (0, 1] for each of the {self.num_heads} heads, but are {decays}")
        self.decays = decays
        self.scale = width**-0.5 if scale is None else scale
        self.query, self.key = (Linear(d_model, self.num_heads * width, bias=False) for _ in range(2))
        self.value, self.gate = (Linear(d_model, inner, bias=False) for _ in range(2))
        self.output = Linear(inner, d_model, bias=False)
        self.activation = make_activation(activation)
        group, scales = (value_width, 0) if norm_over == "head" else (inner, inner)
        self.norm = GatedNorm(channels=inner, group=group, eps=eps, scales=scales, activation=gate_activation)

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Mix; see `Mixer.forward`."""
        if tokens.bias is not None:
            raise ConfigurationError("the mixer 'retention' has no logits for a bias: choose position rotary or none for its layers")
        query, key, value = (in_heads(self.activation(part(x)), self.num_heads) for part in (self.query, self.key, self.value))
        if tokens.rotation is not None:
            query, key = tokens.rotation.query(query), tokens.rotation.key(key)
        precision = torch.promote_types(x.dtype, torch.float32)
        rates = self._decays(x.device).log().to(precision).view(1, -1, 1, 1).expand(1, -1, x.shape[1], 1)
        rates = log_decays(rates, tokens, dim=2)
        key = silent(key * self.scale, tokens, dim=2)
        read, memory = outer_product(query, key, value, rates, None if state is None else state.memory, kernel=self.kernel_now)
        return self.output(self.norm(joined_heads(read), self.gate(x)).to(x.dtype)), RecurrentState(memory)

    def _decays(self, device: torch.device) -> Tensor:
        """Return the decay of each head; defaults are computed on the device, because a CUDA graph cannot capture a copy from the host."""
        precision = torch.float32 if device.type == "mps" else torch.float64
        if self.decays is not None:
            return torch.tensor(self.decays, device=device, dtype=precision)
        return 1 - (-5 - torch.arange(self.num_heads, device=device, dtype=precision)).exp2()
