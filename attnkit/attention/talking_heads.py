# https://arxiv.org/abs/2003.02436
"""Talking heads."""

import torch
from torch import Tensor, nn


class TalkingHeads(nn.Module):
    r"""Learned matrices that mix the scores of all heads, and then their weights.

    Equation:
        $$z_{h} = \sum_g \Lambda_{gh} \, \mathrm{score}_g, \quad w_{h} = \sum_g \Omega_{gh} \, \mathrm{normalizer}(z_g)$$

    Paper: Shazeer et al. 2020, https://arxiv.org/abs/2003.02436

    Initialisation: both are the identity, so heads are not mixed at first (our choice). They have no weight decay.

    Example:
        >>> TalkingHeads(2).mix_weights(torch.ones(1, 2, 1, 1)).flatten().tolist()
        [1.0, 1.0]
    """

    maps = ("logits", "weights")  # their inputs grow with the width of the model
    undecayed = ("logits", "weights")  # decay would pull the identity to zero: all scores would shrink, and so would the output

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.empty(num_heads, num_heads))
        self.weights = nn.Parameter(torch.empty(num_heads, num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set both matrices to the identity."""
        nn.init.eye_(self.logits)
        nn.init.eye_(self.weights)

    def mix_logits(self, logits: Tensor) -> Tensor:
        """Mix the scores [B, H, Q, K] of all heads."""
        return torch.einsum("bgqk,gh->bhqk", logits, self.logits.to(logits.dtype))

    def mix_weights(self, weights: Tensor) -> Tensor:
        """Mix the weights [B, H, Q, K] of all heads."""
        return torch.einsum("bgqk,gh->bhqk", weights, self.weights.to(weights.dtype))
