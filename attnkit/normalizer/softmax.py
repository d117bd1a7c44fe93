# https://arxiv.org/abs/1706.03762
"""Softmax."""

from attnkit.normalizer.base import Exponential
from attnkit.registry import normalizers


@normalizers.register("softmax")
class Softmax(Exponential):
    r"""Softmax: positive weights that sum to one.

    Equation:
        $$w_j = \frac{\exp z_j}{\sum_k \exp z_k}$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Example:
        >>> import torch
        >>> Softmax()(torch.tensor([[[[0.0, 0.0, float("-inf")]]]]))
        tensor([[[[0.5000, 0.5000, 0.0000]]]])
    """
