# https://proceedings.mlr.press/v9/glorot10a.html
"""The linear map that all components use."""

from torch import nn


class Linear(nn.Linear):
    """A linear map with Glorot's uniform initialisation and zero bias.

    Glorot and Bengio 2010, https://proceedings.mlr.press/v9/glorot10a.html; used by Vaswani et al. 2017 in tensor2tensor.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        bias: Whether to learn a bias.

    Example:
        >>> Linear(2, 3).bias.tolist()
        [0.0, 0.0, 0.0]
    """

    def reset_parameters(self) -> None:
        """Draw the weight from Glorot's uniform distribution, and set the bias to zero."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
