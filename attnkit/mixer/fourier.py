# https://arxiv.org/abs/2105.03824
"""Mixing by the Fourier transform."""

import math

import torch
from torch import Tensor

from attnkit.mixer.base import Mixer, Tokens
from attnkit.mixer.recurrence.tokens import in_full_precision
from attnkit.registry import mixers
from attnkit.state import State


@mixers.register("fourier")
class Fourier(Mixer[State]):
    r"""FNet's parameter-free mixing: the real part of the Fourier transform over the tokens and the channels.

    Equation:
        $$y_{tc} = \mathrm{Re} \sum_{s=0}^{n-1} \sum_{d=0}^{D-1} e^{-2 \pi i \, (t s / n + c d / D)} x_{sd}$$

    Paper: Lee-Thorp et al. 2021, https://arxiv.org/abs/2105.03824

    The paper transforms all T columns of a batch, padding included, so its outputs depend on the length of the longest row. Here n is the
    number of real tokens in a document, and t and s count them, so the output of a row does not depend on its batch. Rows without padding
    match the paper.

    Cost per channel: about $30 \log_2 T$ operations per token (a fast Fourier transform). A batch with padding or documents needs a matrix
    product instead, T multiply-adds per token and channel, and $T^2$ numbers per row. State: none.

    Example:
        >>> Fourier()(torch.ones(1, 2, 3), Tokens())[0]
        tensor([[[6., 0., 0.],
                 [0., 0., 0.]]])
    """

    directions = frozenset({"bidirectional"})
    growth = "none"

    def forward(self, x: Tensor, tokens: Tokens, state: State | None = None) -> tuple[Tensor, None]:
        """Mix; see `Mixer.forward`."""
        with torch.autocast(x.device.type, enabled=False):
            (y,) = in_full_precision(x)
            y = torch.fft.fft(y, dim=2)
            if tokens.real is None and tokens.starts is None:
                return torch.fft.fft(y, dim=1).real.to(x.dtype), None
            angle, weight = _angles(tokens, y.real.dtype)
            return ((weight * angle.cos()) @ y.real + (weight * angle.sin()) @ y.imag).to(x.dtype), None


def _angles(tokens: Tokens, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    r"""Return $2 \pi t s / n$ for each pair of tokens, and 1 if both are real tokens of one document, otherwise 0: [B, T, T]."""
    flags = tokens.real if tokens.real is not None else tokens.starts
    assert flags is not None
    real = torch.ones_like(flags) if tokens.real is None else tokens.real
    document = torch.zeros_like(real, dtype=torch.long) if tokens.starts is None else tokens.starts.long().cumsum(1)
    together = (document[:, :, None] == document[:, None, :]) & real[:, :, None] & real[:, None, :]
    index = together.tril(-1).sum(-1)  # [B, T], the index among the real tokens of the document
    length = together.sum(-1).clamp(min=1)[..., None]
    turns = (index[:, :, None] * index[:, None, :]) % length  # drop whole turns before anything is rounded
    return 2 * math.pi * turns.to(dtype) / length, together.to(dtype)
