# https://arxiv.org/abs/2002.05202
"""The gated linear unit."""

from torch import Tensor, nn

from attnkit.dropout import Dropout
from attnkit.feed_forward.base import FeedForward, make_activation
from attnkit.linear import Linear
from attnkit.registry import NormSpec, check_positive, feed_forwards, norms


@feed_forwards.register("glu")
class GLU(FeedForward):
    r"""A gated linear unit: SwiGLU with `silu`, GEGLU with `gelu`, ReGLU with `relu`, the original GLU with `sigmoid`.

    Equation:
        $$y = W_2 \, \mathrm{dropout}(\phi(W_g x) \odot W_1 x)$$

    Paper: Shazeer 2020, https://arxiv.org/abs/2002.05202; OpenAI 2025, https://arxiv.org/abs/2508.10925 (`limit` and `offset`)

    Initialisation: Glorot uniform, zero biases.

    Args:
        d_model: Width of input and output D.
        ffn_dim: Width of the hidden layer (default: 8 D / 3, rounded up to a multiple of 8: as many parameters as an `mlp` of 4 D).
        activation: Name of phi, as for `mlp`.
        bias: Whether the three linear maps have biases.
        dropout: Probability of dropping a hidden element.
        sub_norm: A norm of the hidden elements, directly before W_2 (Sub-LN of Magneto, https://arxiv.org/abs/2210.06423; BitNet b1.58;
            default: none).
        limit: Bounds $W_1 x$ on both sides, and $W_g x$ from above (gpt-oss: 7; default: no bounds).
        offset: Added to $W_1 x$ (gpt-oss: 1).

    Raises:
        ConfigurationError: The activation is unknown.
        ValueError: `ffn_dim` or `limit` is not positive.

    Example:
        >>> import torch
        >>> GLU(d_model=8)(torch.randn(2, 3, 8)).shape
        torch.Size([2, 3, 8])
    """

    splits = ("gate", "input")

    def __init__(
        self,
        *,
        d_model: int,
        ffn_dim: int | None = None,
        activation: str = "silu",
        bias: bool = False,
        dropout: float = 0.0,
        sub_norm: NormSpec | None = None,
        limit: float | None = None,
        offset: float = 0.0,
    ) -> None:
        super().__init__()
        ffn_dim = -(-8 * d_model // 24) * 8 if ffn_dim is None else ffn_dim
        check_positive(ffn_dim=ffn_dim)
        if limit is not None and limit <= 0:
            raise ValueError(f"limit must be positive, but is {limit}; omit it for no bounds")
        self.limit, self.offset = limit, offset
        self.gate = Linear(d_model, ffn_dim, bias=bias)
        self.input = Linear(d_model, ffn_dim, bias=bias)
        self.output = Linear(ffn_dim, d_model, bias=bias)
        self.activation = make_activation(activation)
        self.dropout = Dropout(dropout)
        self.sub_norm: nn.Module | None = None if sub_norm is None else norms.build(sub_norm, d_model=ffn_dim)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Transform `x` [..., D]; `real` is not used."""
        gate, value = self.gate(x), self.input(x)
        if self.limit is not None:
            gate, value = gate.clamp(max=self.limit), value.clamp(-self.limit, self.limit)
        hidden = self.dropout(self.activation(gate) * (value + self.offset if self.offset else value))
        y: Tensor = self.output(hidden if self.sub_norm is None else self.sub_norm(hidden).to(hidden.dtype))
        return y
