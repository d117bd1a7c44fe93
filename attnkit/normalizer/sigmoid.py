# https://arxiv.org/abs/2409.04431
"""Sigmoid."""

from torch import Tensor

from attnkit.normalizer.base import Normalizer
from attnkit.registry import normalizers


@normalizers.register("sigmoid")
class Sigmoid(Normalizer):
    r"""Sigmoid: the weight of a key does not depend on the other keys. The bias makes the initial weights sum to about one.

    Equation:
        $$w_j = \frac{1}{1 + \exp(-z_j - b)}$$

    Paper: Ramapuram et al. 2024, https://arxiv.org/abs/2409.04431

    Args:
        bias: b (default: -log n for a query that may attend to n keys, so that padding changes nothing and decoding step by step equals a
            full pass; the paper's n is the length of the sequence).

    Example:
        >>> import torch
        >>> Sigmoid()(torch.tensor([[[[0.0, 0.0, float("-inf")]]]]))
        tensor([[[[0.3333, 0.3333, 0.0000]]]])
    """

    rows_sum_to_one = False

    def __init__(self, *, bias: float | None = None) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, logits: Tensor) -> Tensor:
        """Return the weights [B, H, Q, K]."""
        if self.bias is not None:
            return (logits + self.bias).sigmoid()
        keys = (logits != float("-inf")).sum(-1, keepdim=True)
        return (logits - keys.to(logits.dtype).log()).sigmoid()
