# https://proceedings.mlr.press/v9/glorot10a.html
"""The linear map that all components use."""

from torch import Tensor, nn
from typing_extensions import override

from attnkit.packed import packed_for


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product of `x` [..., I] and the transpose of `weight` [O, I], plus `bias` [O]: [..., O]; see `attnkit.packed`."""
    packed = packed_for(x, weight)
    # only parameters are packed
    return nn.functional.linear(x, weight, bias) if packed is None else packed.multiply(x, weight, bias)  # type: ignore[arg-type]


class Linear(nn.Linear):
    """A linear map with Glorot's uniform initialisation and zero bias.

    Glorot and Bengio 2010, https://proceedings.mlr.press/v9/glorot10a.html; used by Vaswani et al. 2017 in tensor2tensor.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        bias: Whether to learn a bias.
        fixed_inputs: Whether the width of the input does not grow with that of the model; initialisations may read this.

    Example:
        >>> Linear(2, 3).bias.tolist()
        [0.0, 0.0, 0.0]
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, fixed_inputs: bool = False) -> None:
        self.fixed_inputs = fixed_inputs
        super().__init__(in_features, out_features, bias=bias)

    def reset_parameters(self) -> None:
        """Draw the weight from Glorot's uniform distribution, and set the bias to zero."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
