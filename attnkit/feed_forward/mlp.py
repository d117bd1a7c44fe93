# https://arxiv.org/abs/1706.03762
"""The two-layer perceptron."""

from torch import Tensor, nn

from attnkit.dropout import Dropout
from attnkit.feed_forward.base import FeedForward, make_activation
from attnkit.linear import Linear
from attnkit.registry import NormSpec, check_positive, feed_forwards, norms


@feed_forwards.register("mlp")
class MLP(FeedForward):
    r"""A perceptron with one hidden layer.

    Equation:
        $$y = W_2 \, \mathrm{dropout}(\phi(W_1 x + b_1)) + b_2$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Initialisation: Glorot uniform, zero biases.

    Args:
        d_model: Width of input and output D.
        ffn_dim: Width of the hidden layer (default: 4 D).
        activation: Name of phi: any element-wise function of torch.nn.functional, or `gelu_tanh`, `quick_gelu`, `relu_squared`, `xielu`
            (https://arxiv.org/abs/2411.13010, with two learned parameters), ...
        bias: Whether to learn b_1 and b_2.
        dropout: Probability of dropping a hidden element.
        sub_norm: A norm of the hidden elements, directly before W_2 (Sub-LN of Magneto, https://arxiv.org/abs/2210.06423; BitNet b1.58;
            default: none).

    Raises:
        ConfigurationError: The activation is unknown.
        ValueError: `ffn_dim` is not positive.

    Example:
        >>> import torch
        >>> MLP(d_model=8, ffn_dim=32, activation="gelu")(torch.randn(2, 3, 8)).shape
        torch.Size([2, 3, 8])
    """

    splits = ("input",)

    def __init__(
        self,
        *,
        d_model: int,
        ffn_dim: int | None = None,
        activation: str = "relu",
        bias: bool = True,
        dropout: float = 0.0,
        sub_norm: NormSpec | None = None,
    ) -> None:
        super().__init__()
        ffn_dim = 4 * d_model if ffn_dim is None else ffn_dim
        check_positive(ffn_dim=ffn_dim)
        self.input = Linear(d_model, ffn_dim, bias=bias)
        self.output = Linear(ffn_dim, d_model, bias=bias)
        self.activation = make_activation(activation)
        self.dropout = Dropout(dropout)
        self.sub_norm: nn.Module | None = None if sub_norm is None else norms.build(sub_norm, d_model=ffn_dim)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Transform `x` [..., D]; `real` is not used."""
        hidden = self.dropout(self.activation(self.input(x)))
        y: Tensor = self.output(hidden if self.sub_norm is None else self.sub_norm(hidden).to(hidden.dtype))
        return y
