# https://arxiv.org/abs/2302.10866
"""A depthwise convolution over a few tokens."""

import torch
from torch import Tensor, nn

from attnkit.feed_forward.base import make_activation
from attnkit.mixer.base import Tokens
from attnkit.mixer.recurrence.tokens import lagged, reversed_tokens


class ShortConvolution(nn.Module):
    r"""A depthwise convolution over K tokens. It skips padding and never reaches into another document.

    Equation:
        $$y_t = \phi\Big(\sum_{l=0}^{K-1} w_{K-1-l} \odot x_{t-l} + b\Big)$$
        or, with a centred kernel, over $x_{t+(K-1)/2-l}$

    Paper: Poli et al. 2023, https://arxiv.org/abs/2302.10866

    Initialisation: as in `torch.nn.Conv1d`, with zero bias.

    A `centred` kernel reads as many later tokens as earlier ones, rather than only earlier ones; K (`kernel_size`) must then be odd.

    Example:
        >>> y, recent = ShortConvolution(channels=3, kernel_size=4, bias=True, activation="silu")(torch.ones(2, 9, 3), Tokens())
        >>> y.shape, recent.shape
        (torch.Size([2, 9, 3]), torch.Size([2, 3, 3]))
    """

    def __init__(self, *, channels: int, kernel_size: int, bias: bool, activation: str, centred: bool = False) -> None:
        super().__init__()
        if kernel_size < 1:
            raise ValueError(f"the kernel size of a convolution must be positive, but is {kernel_size}")
        self.later = kernel_size // 2 if centred else 0
        self.weight = nn.Parameter(torch.empty(channels, kernel_size))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.activation = make_activation(activation)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight from the uniform distribution of torch's convolutions, and set the bias to zero."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, tokens: Tokens, recent: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Convolve `x` [B, T, D], which follows `recent` [B, K - 1, D]; return the output [B, T, D] and the last K - 1 tokens.

        With a centred kernel, `recent` is None and half as many tokens are returned.
        """
        earlier, recent = lagged(x, self.weight.shape[1] - 1 - self.later, tokens, recent)
        weights, reach = self.weight.to(x.dtype).unbind(1), len(earlier)
        y = x * weights[reach] if self.bias is None else torch.addcmul(self.bias.to(x.dtype), x, weights[reach])
        for token, weight in zip(earlier, reversed(weights[:reach]), strict=True):
            y = torch.addcmul(y, token, weight)
        if self.later:
            for token, weight in zip(lagged(x.flip(1), self.later, reversed_tokens(tokens))[0], weights[reach + 1 :], strict=True):
                y = torch.addcmul(y, token.flip(1), weight)
        return self.activation(y), recent
