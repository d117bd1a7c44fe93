"""Padding and documents in a recurrence: padding neither decays nor writes, and a document starts from an empty state."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from attnkit.mixer.base import Mixer, Tokens
from attnkit.mixer.recurrence.scan import EMPTY, running_maximum
from attnkit.state import State

Kernel = Literal["torch", "fla"]


@dataclass(frozen=True)
class RecurrentState(State):
    """The state of a linear recurrence: of constant size, and in fp32 (float64 in a float64 model), even under autocast."""

    memory: Tensor  # [B, H, N, P], a matrix for each head; or [B, ...]
    recent: Tensor | None = None  # the last tokens that a short convolution reads, [B, K - 1, channels]; None without one


class LinearRecurrence(Mixer[RecurrentState]):
    """A mixer that sees earlier tokens through a state of constant size.

    Args:
        kernel_size: Length K of the convolution, in tokens.
        eps: The norm's epsilon.
    """

    directions = frozenset({"causal"})
    growth = "constant"


class WithKernel:
    """A mixer with a choice of kernels for its recurrence. Parameters and states do not depend on it.

    Args:
        kernel: The implementation of the recurrence: `torch`, on any device and in fp32 even under autocast; or `fla`, on CUDA GPUs (`pip
            install 'attnkit[fla]'`), which multiplies in TF32, or in bfloat16 under autocast to bfloat16. Single tokens always use `torch`.

    Attributes:
        as_written: Whether to use `torch` whatever the kernel, because FLOPs are counted there.
    """

    kernel: Kernel
    as_written: bool = False

    @property
    def kernel_now(self) -> Kernel:
        """The kernel of the next call."""
        return "torch" if self.as_written else self.kernel


def in_full_precision(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in fp32; float64 tensors stay as they are.

    Example:
        >>> in_full_precision(torch.ones(1, dtype=torch.bfloat16))[0].dtype
        torch.float32
    """
    return tuple(x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors)


def reversed_tokens(tokens: Tokens) -> Tokens:
    """Return the properties of the tokens in reverse order, in which the last token of a document becomes its first.

    Example:
        >>> reversed_tokens(Tokens(starts=torch.tensor([[True, False, True, False, False]]))).starts.int()
        tensor([[1, 0, 0, 1, 0]], dtype=torch.int32)
    """
    starts = tokens.starts
    ends = None if starts is None else torch.cat([starts[:, 1:], torch.ones_like(starts[:, :1])], 1)
    return Tokens(real=None if tokens.real is None else tokens.real.flip(1), starts=None if ends is None else ends.flip(1))


def silent(x: Tensor, tokens: Tokens, *, dim: int) -> Tensor:
    """Return `x` with zeros at padding, so that padding writes nothing; `dim` is the time axis, and axis 0 the batch."""
    return x if tokens.real is None else x.masked_fill(~_aligned(tokens.real, x, dim), 0.0)


def log_decays(x: Tensor, tokens: Tokens, *, dim: int) -> Tensor:
    """Return the logarithms of decays with 0 at padding and -inf where a document starts."""
    return _filled(x, tokens, dim, 0.0, float("-inf"))


def decays(x: Tensor, tokens: Tokens, *, dim: int) -> Tensor:
    """Return the decays with 1 at padding and 0 where a document starts."""
    return _filled(x, tokens, dim, 1.0, 0.0)


class Relative(NamedTuple):
    """The inputs of a recurrence with weights exp(logits) whose state is kept relative to the largest weight, so no exponent exceeds zero.

    Args:
        log_decay: Logarithms of the decays of the relative state.
        weight: The weights relative to the largest one; zero at padding.
        largest: The logarithm of the largest weight so far, which decays like the state.
        earlier: The same, before each token.
    """

    log_decay: Tensor
    weight: Tensor
    largest: Tensor
    earlier: Tensor


def relative_to_largest(rates: Tensor, logits: Tensor, start: Tensor, tokens: Tokens, *, dim: int) -> Relative:
    """Return the relative inputs for these logarithms of decays and of weights; `start` is `largest` before the first token.

    `dim` is the time axis, which `start` lacks.

    Example:
        >>> rates, logits = torch.full((1, 2, 1), -1.0), torch.tensor([[[5.0], [3.0]]])
        >>> found = relative_to_largest(rates, logits, torch.full((1, 1), EMPTY), Tokens(), dim=1)
        >>> found.largest.flatten(), found.weight.flatten()
        (tensor([5., 4.]), tensor([1.0000, 0.3679]))
    """
    if tokens.real is not None:
        logits = logits.masked_fill(~_aligned(tokens.real, logits, dim), EMPTY)
    largest = running_maximum(rates, logits, start, dim=dim)
    earlier = torch.cat([start.unsqueeze(dim), largest.narrow(dim, 0, largest.shape[dim] - 1)], dim)
    return Relative(earlier + rates - largest, silent(torch.exp(logits - largest), tokens, dim=dim), largest, earlier)


def lagged(x: Tensor, lags: int, tokens: Tokens, past: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
    """Return the preceding tokens of the same document: padding is skipped, and zeros precede the first token.

    Args:
        x: [B, T, D].
        lags: The largest lag L.
        tokens: Where padding is and where documents start.
        past: The last L tokens before `x`, [B, L, D] (default: none).

    Returns:
        For each lag from 1 to L, the tokens at that distance, [B, T, D]; and the last L tokens, for the next call.

    Example:
        >>> x = torch.tensor([[[1.0], [2.0], [0.0], [3.0]]])
        >>> (before,), last = lagged(x, 1, Tokens(real=torch.tensor([[True, True, False, True]])))
        >>> before[0, [0, 1, 3], 0], last
        (tensor([0., 1., 2.]), tensor([[[3.]]]))
    """
    batch, length = x.shape[:2]
    document = None if tokens.starts is None else tokens.starts.long().cumsum(1)[..., None]  # [B, T, 1]; `past` belongs to document 0
    at = None  # the column of each token, after those of `past`
    if tokens.real is not None:
        order = tokens.real.long().argsort(dim=1, descending=True, stable=True)  # real tokens first
        x, document = rows(x, order), None if document is None else rows(document, order)
        at = lags - 1 + tokens.real.cumsum(1)
    row = torch.cat([x.new_zeros(batch, lags, x.shape[2]) if past is None else past.to(x.dtype), x], 1)
    documents = None if document is None else torch.cat([document.new_zeros(batch, lags, 1), document], 1)

    def behind(values: Tensor, lag: int) -> Tensor:
        return values.narrow(1, lags - lag, length) if at is None else rows(values, (at - lag).clamp(min=0))

    def newest(values: Tensor) -> Tensor:
        return values[:, length:] if at is None else rows(values, at[:, -1:] + torch.arange(1 - lags, 1, device=x.device))

    found = [behind(row, lag) for lag in range(1, lags + 1)]
    last = newest(row)
    if documents is not None:
        found = [x.masked_fill(behind(documents, lag) != behind(documents, 0), 0.0) for lag, x in enumerate(found, 1)]
        last = last.masked_fill(newest(documents) != documents.amax(1, keepdim=True), 0.0)
    return found, last


def rows(x: Tensor, columns: Tensor) -> Tensor:
    """Return the tokens `columns` [B, N] (or [1, N]) of each row of `x` [B, T, D]: [B, N, D]."""
    return x.gather(1, columns[..., None].expand(len(x), -1, x.shape[2]))


def _filled(x: Tensor, tokens: Tokens, dim: int, at_padding: float, at_start: float) -> Tensor:
    if tokens.real is not None:
        x = x.masked_fill(~_aligned(tokens.real, x, dim), at_padding)
    return x if tokens.starts is None else x.masked_fill(_aligned(tokens.starts, x, dim), at_start)


def _aligned(mask: Tensor, x: Tensor, dim: int) -> Tensor:
    return mask.view(mask.shape[0], *[1] * (dim - 1), mask.shape[1], *[1] * (x.dim() - dim - 1))
