"""The linear map of every component."""

from torch import nn


def linear(in_features: int, out_features: int, *, bias: bool) -> nn.Linear:
    """Return a linear map with Glorot's uniform initialisation and zero bias.

    Glorot and Bengio 2010, https://proceedings.mlr.press/v9/glorot10a.html; the choice of Vaswani et al. 2017 in tensor2tensor.

    Example:
        >>> linear(2, 3, bias=True).bias.tolist()
        [0.0, 0.0, 0.0]
    """
    layer = nn.Linear(in_features, out_features, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
