# https://arxiv.org/abs/1607.06450
"""Layer normalisation."""

from torch import nn

from attnkit.norm.base import Norm
from attnkit.registry import norms, refuse_unread, require_at_least


@norms.register("layer_norm")
class LayerNorm(nn.LayerNorm, Norm):
    r"""Layer normalisation: zero mean and unit variance over the channels, then a learned scale and shift.

    Equation:
        $$y = g \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + b$$

    Paper: Ba et al. 2016, https://arxiv.org/abs/1607.06450

    Args:
        d_model: Number of channels D.
        eps: Added to the variance (BERT: 1e-12).
        bias: Whether to learn the shift b.
        learned: Whether to learn g and b; otherwise g is 1 and b is 0 (OLMo).

    Raises:
        ConfigurationError: `bias` is set although nothing is learned, or `eps` is negative.

    Example:
        >>> import torch
        >>> LayerNorm(d_model=2, eps=0.0)(torch.tensor([3.0, 5.0])).detach()
        tensor([-1.,  1.])
    """

    def __init__(self, *, d_model: int, eps: float = 1e-5, bias: bool = True, learned: bool = True) -> None:
        if not learned:
            refuse_unread(LayerNorm, "without learned scales and shifts", bias=bias)
        require_at_least(0, eps=eps)
        super().__init__(d_model, eps=eps, elementwise_affine=learned, bias=bias)
