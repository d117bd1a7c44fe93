# https://arxiv.org/abs/2302.10866
"""Convolutions over the tokens, short or as long as the sequence, with gates before and after."""

from dataclasses import dataclass

from torch import Tensor

from attnkit.linear import Linear
from attnkit.mixer.base import Direction, Growth, Mixer, Tokens
from attnkit.mixer.recurrence.long_convolution import LongConvolution
from attnkit.mixer.recurrence.short_convolution import ShortConvolution
from attnkit.registry import ConfigurationError, mixers
from attnkit.state import State


@dataclass(frozen=True)
class ConvolutionState(State):
    """The last tokens, which the convolution reads again, [B, K - 1, D]; with a long kernel, all tokens. Zeros precede the first token."""

    recent: Tensor


@mixers.register("convolution")
class Convolution(Mixer[ConvolutionState]):
    r"""A convolution of each channel over the tokens, between two gates that are linear in the input.

    Equation:
        $$y_t = W_O \, (C x_t \odot u_t), \qquad u_t = \phi\Big(\sum_l h_l \odot B x_{t-l} \odot W x_{t-l} + b\Big)$$
        over the lags $0 \le l < K$, or in the direction `bidirectional` over $|l| \le (K - 1) / 2$; without `gated`, $B x = C x = 1$

    Paper: Poli et al. 2023, https://arxiv.org/abs/2302.10866. The default is the short convolution of LFM2 (Liquid AI 2025,
    https://arxiv.org/abs/2511.23404), with `bias: false`.

    Cost per token and channel: K multiply-adds besides the projections. State: `constant`, K - 1 tokens. With a long kernel, the cost is
    about $30 \log_2 T$ operations (a fast Fourier transform), the state is `linear` (all tokens so far), and each decoding step
    transforms all of them. Training keeps about 5 numbers per token and channel. Each document takes a transform of its own.

    Args:
        bias: Whether the projections and the convolution have biases.
        kernel_size: Length of the kernel K in tokens, at least 2, and odd in the direction `bidirectional`; or None for a kernel as long as
            the sequence, which a small network computes from the lag (see `LongConvolution`).
        gated: Whether to apply the two gates.
        activation: Name of $\phi$.

    Raises:
        ConfigurationError: `kernel_size` is below 2, or even in the direction `bidirectional`.

    Example:
        >>> import torch
        >>> y, state = Convolution(d_model=8, kernel_size=4)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.recent.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 3, 8]))
        >>> Convolution(d_model=8, kernel_size=None)(torch.randn(1, 5, 8), Tokens())[1].recent.shape
        torch.Size([1, 5, 8])
    """

    directions = frozenset({"causal", "bidirectional"})
    growth: Growth = "constant"

    def __init__(
        self,
        *,
        d_model: int,
        direction: Direction = "causal",
        bias: bool = True,
        kernel_size: int | None = 3,
        gated: bool = True,
        activation: str = "identity",
    ) -> None:
        super().__init__()
        centred = direction == "bidirectional"
        if kernel_size is not None and (kernel_size < 2 or (centred and kernel_size % 2 == 0)):
            wanted = "odd and at least 3 in an encoder, where the kernel is centred," if centred else "at least 2"
            raise ConfigurationError(f"the kernel_size of the mixer 'convolution' must be {wanted} or null, but is {kernel_size}")
        self.is_causal, self.gated = not centred, gated
        self.input = Linear(d_model, (3 if gated else 1) * d_model, bias=bias)
        self.value_rows = slice(-d_model, None)  # rows of the weight of `input`; initialisations read it
        self.convolution: ShortConvolution | LongConvolution
        if kernel_size is None:
            self.growth = "linear"
            self.convolution = LongConvolution(channels=d_model, bias=bias, activation=activation, centred=centred)
        else:
            self.convolution = ShortConvolution(
                channels=d_model, kernel_size=kernel_size, bias=bias, activation=activation, centred=centred
            )
        self.output = Linear(d_model, d_model, bias=bias)

    def forward(self, x: Tensor, tokens: Tokens, state: ConvolutionState | None = None) -> tuple[Tensor, ConvolutionState | None]:
        """Mix; see `Mixer.forward`."""
        u, after = self.input(x), None
        if self.gated:
            before, after, u = u.chunk(3, -1)
            u = before * u
        y, recent = self.convolution(u, tokens, None if state is None else state.recent)
        return self.output(y if after is None else after * y), ConvolutionState(recent) if self.is_causal else None
