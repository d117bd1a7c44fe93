# https://arxiv.org/abs/2302.10866
"""A convolution with a kernel as long as the sequence, computed by the fast Fourier transform."""

import math

import torch
from torch import Tensor, nn

from attnkit.feed_forward.base import make_activation
from attnkit.linear import Linear, called, is_plain
from attnkit.mixer.base import Tokens
from attnkit.mixer.recurrence.tokens import in_full_precision, rows, silent

FREQUENCIES, HIDDEN = 8, 16
"""The number of frequencies whose sines and cosines the kernel's network reads, and the number of its hidden units."""


class ImplicitKernel(nn.Module):
    r"""A kernel of any length: a small network that reads the lag, times an exponential window for each channel.

    Equation:
        $$h_l = \sqrt{1 - a^2} \odot a^l \odot W_2 \sin(W_1 [\cos \omega l, \sin \omega l] + b_1), \qquad a = \exp(-e^\rho)$$
        with frequencies $\omega_j = 10^{-j / 2}$

    Paper: Poli et al. 2023, https://arxiv.org/abs/2302.10866

    Frequencies and windows are in units of tokens; the paper's are in fractions of the longest sequence, and its network is deeper.

    Initialisation: windows that reach between 3 and 1000 tokens, and linear maps as usual. There is no weight decay, as in the paper's
    code.

    Example:
        >>> ImplicitKernel(channels=3)(100).shape
        torch.Size([100, 3])
    """

    undecayed = ("hidden", "output")

    def __init__(self, *, channels: int) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.empty(channels))
        self.reset_parameters()
        self.hidden = Linear(2 * FREQUENCIES, HIDDEN, fixed_inputs=True)
        self.output = Linear(HIDDEN, channels, bias=False, fixed_inputs=True)

    def reset_parameters(self) -> None:
        """Draw the rates of the windows log-uniformly."""
        nn.init.uniform_(self.log_rate, math.log(1e-3), math.log(1 / 3))

    def forward(self, length: int) -> Tensor:
        """Return the kernel at the lags 0 to `length` - 1, [length, D], in fp32 or float64."""
        device = self.log_rate.device
        with torch.autocast(device.type, enabled=False):
            (log_rate,) = in_full_precision(self.log_rate)
            lags = torch.arange(length, device=device, dtype=log_rate.dtype)[:, None]
            angles = lags * 10 ** (-torch.arange(FREQUENCIES, device=device, dtype=log_rate.dtype) / 2)
            features = torch.cat([angles.cos(), angles.sin()], -1)
            rate = log_rate.exp()
            window = (-torch.expm1(-2 * rate)).sqrt() * torch.exp(-lags * rate)  # the squares of a window sum to one
            if not (is_plain(self.hidden) and is_plain(self.output)):  # their hooks, such as those of pruning, must run
                return window * called(self.output, called(self.hidden, features).sin())
            w_1, b_1, w_2 = in_full_precision(self.hidden.weight, self.hidden.bias, self.output.weight)
            return window * ((features @ w_1.T + b_1).sin() @ w_2.T)


class LongConvolution(nn.Module):
    r"""A convolution over all earlier tokens, or over all tokens with a second kernel (`centred`). It skips padding, and never reaches
    into another document.

    Later tokens affect an output only by the rounding errors of the transform, in fp32 about $10^{-7}$ of the largest input.

    Example:
        >>> y, past = LongConvolution(channels=3, bias=True, activation="silu")(torch.ones(2, 9, 3), Tokens())
        >>> y.shape, past.shape
        (torch.Size([2, 9, 3]), torch.Size([2, 9, 3]))
    """

    def __init__(self, *, channels: int, bias: bool, activation: str, centred: bool = False) -> None:
        super().__init__()
        self.kernel = ImplicitKernel(channels=channels)
        self.later_kernel = ImplicitKernel(channels=channels) if centred else None
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.activation = make_activation(activation)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the bias to zero."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, tokens: Tokens, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Convolve `x` [B, T, D], which follows `past` [B, K, D]; return the output [B, T, D] and all tokens so far, [B, K + T, D]."""
        length = x.shape[1]
        whole = silent(x, tokens, dim=1)
        whole = whole if past is None else torch.cat([past.to(x.dtype), whole], 1)
        before = whole.shape[1] - length
        order = None
        if tokens.real is not None:  # padding first, as zeros, so distances count real tokens only
            real = torch.cat([tokens.real.new_ones(len(x), before), tokens.real], 1)
            order = real.long().argsort(dim=1, stable=True)
            whole = rows(whole, order)
        if tokens.starts is None:
            y = self._convolved(whole)
        else:
            document = tokens.starts.long().cumsum(1)[..., None]  # rows of several documents never follow a state
            document = document if order is None else rows(document, order)
            y = torch.stack([self._convolved(whole * (document == n)) * (document == n) for n in range(int(document.max()) + 1)]).sum(0)
        y = (y if order is None else rows(y, order.argsort(dim=1)))[:, before:].to(x.dtype)
        return self.activation(y if self.bias is None else y + self.bias.to(x.dtype)), whole

    def _convolved(self, x: Tensor) -> Tensor:
        """Convolve whole rows, in fp32 or float64."""
        length = x.shape[1]
        (x,) = in_full_precision(x)
        kernel = self.kernel(length)
        if self.later_kernel is not None:  # on a circle, lag -l is lag 2 T - l
            kernel = torch.cat([kernel, torch.zeros_like(kernel[:1]), self.later_kernel(length)[1:].flip(0)])
        spectrum = torch.fft.rfft(x, n=2 * length, dim=1) * torch.fft.rfft(kernel.to(x.dtype), n=2 * length, dim=0)
        y: Tensor = torch.fft.irfft(spectrum, n=2 * length, dim=1)[:, :length]
        return y
