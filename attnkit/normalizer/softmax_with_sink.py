# https://arxiv.org/abs/2508.10925
"""Softmax with a learned sink."""

import torch
from torch import Tensor, nn

from attnkit.normalizer.base import Exponential
from attnkit.registry import normalizers


@normalizers.register("softmax_with_sink")
class SoftmaxWithSink(Exponential):
    r"""Softmax with a learned sink per head (gpt-oss): a logit that belongs to no key, which lets a head attend to nothing.

    Equation:
        $$w_j = \frac{\exp z_j}{\exp s_h + \sum_k \exp z_k}$$

    Paper: OpenAI 2025, https://arxiv.org/abs/2508.10925; Xiao et al. 2023, https://arxiv.org/abs/2309.17453 (attention sinks)

    Args:
        num_heads: Number of query heads, each with its own s.
        initial_sink: Initial value of s (our choice: 0, as in `softmax_off_by_one`).

    Example:
        >>> SoftmaxWithSink(num_heads=1)(torch.zeros(1, 1, 1, 3)).detach()
        tensor([[[[0.2500, 0.2500, 0.2500]]]])
    """

    rows_sum_to_one = False

    def __init__(self, *, num_heads: int, initial_sink: float = 0.0) -> None:
        super().__init__()
        self.initial_sink = initial_sink
        self.sink = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every head's sink to `initial_sink`."""
        nn.init.constant_(self.sink, self.initial_sink)

    def sinks(self, heads: Tensor) -> Tensor:
        """Return the sinks [H]."""
        return self.sink
