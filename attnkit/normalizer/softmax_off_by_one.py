# https://www.evanmiller.org/attention-is-off-by-one.html
"""Softmax off by one."""

from torch import Tensor

from attnkit.normalizer.base import Exponential
from attnkit.registry import normalizers


@normalizers.register("softmax_off_by_one")
class SoftmaxOffByOne(Exponential):
    r"""Softmax with one added to the denominator, which lets a head attend to nothing: all its weights may be near zero.

    It equals `softmax_with_sink` with all sinks fixed at zero.

    Equation:
        $$w_j = \frac{\exp z_j}{1 + \sum_k \exp z_k}$$

    Paper: Miller 2023, https://www.evanmiller.org/attention-is-off-by-one.html

    Example:
        >>> import torch
        >>> SoftmaxOffByOne()(torch.zeros(1, 1, 1, 3))
        tensor([[[[0.2500, 0.2500, 0.2500]]]])
    """

    rows_sum_to_one = False

    def sinks(self, heads: Tensor) -> Tensor:
        """Return a zero for each head, [H]."""
        return heads.new_zeros(heads.shape[1])
