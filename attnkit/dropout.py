# https://jmlr.org/papers/v15/srivastava14a.html
"""Dropout as a function of the example, the module and the element, as fast as torch's.

While a task trains, which elements are dropped depends only on the seed, the epoch, the example, the module's path and the
element's coordinates (`attnkit.draws`), never on the batch, the padding, the process or the device. Elsewhere, a seed from torch's global
generator replaces the keys of the examples.

For each element, 16 random bits are compared with a threshold, so the probability is a multiple of 2^-16; the scale accounts for that.
"""

import torch
from torch import Tensor, nn

from attnkit import draws

LEVELS = 2**16


def dropout(x: Tensor, p: float, *, site: int = 0, rows: Tensor | None = None, first: int = 0) -> Tensor:
    """Zero each element with probability `p` and scale the others by 1 / (1 - p).

    Args:
        x: [B, ..., N]. If B is not the number of examples of the step, torch's global generator is used.
        p: Probability, in [0, 1].
        site: Identifies this dropout among those of the model.
        rows: int64 [...], the numbers of the rows of N elements within an example (default: counted from 0).
        first: Index of the first of the N elements.

    Example:
        >>> dropout(torch.ones(3), 0.0)
        tensor([1., 1., 1.])
        >>> sorted(set(dropout(torch.ones(1000), 0.5).tolist()))
        [0.0, 2.0]
    """
    if p == 0.0:
        return x
    if p == 1.0:
        return x.masked_fill(torch.ones_like(x, dtype=torch.bool), 0.0)
    middle = x.shape[1:-1]
    if rows is None:
        rows = torch.arange(middle.numel(), device=x.device).view(middle)
    keys = keys_for(x.shape[0] if x.ndim > 1 else 1, x.device)
    dropped = is_dropped(keys, p, site=site, rows=rows, columns=x.shape[-1] if x.ndim else 1, first=first).view(x.shape)
    return x.masked_fill(dropped, 0.0) * kept_scale(p)


def keys_for(batch: int, device: torch.device) -> Tensor:
    """Return a key for each row of a batch, int64 [B]: of the step's examples if there are B, otherwise from torch's generator."""
    keys = draws.current()
    if keys is None or keys.shape[0] != batch:
        return draws.make_keys(torch.arange(batch, device=device)) + torch.randint(2**62, (1,), device=device)
    return keys.to(device)


def is_dropped(keys: Tensor, p: float, *, site: int, rows: Tensor, columns: int, first: int = 0) -> Tensor:
    """Return which elements `dropout` zeroes for a `p` in (0, 1), bool [B, ..., N], given the keys of the examples, int64 [B]."""
    return draws.fields(keys, site, rows, columns, first=first) < lowest_kept(p)


def lowest_kept(p: float) -> int:
    """Return the smallest number from `draws.fields` that keeps an element."""
    return _threshold(p) - LEVELS // 2


def kept_scale(p: float) -> float:
    """Return the factor that scales the kept elements."""
    return LEVELS / (LEVELS - _threshold(p))


def _threshold(p: float) -> int:
    return min(round(p * LEVELS), LEVELS - 1)


class Dropout(nn.Module):
    """`dropout` in training mode, the identity in evaluation mode.

    Args:
        p: Probability of zeroing an element, in [0, 1].

    Raises:
        ValueError: `p` is outside [0, 1].

    Example:
        >>> Dropout(0.5).eval()(torch.ones(3))
        tensor([1., 1., 1.])
    """

    site: int = 0  # identifies this dropout within the model; a task derives it from the module's path
    first: int = 0  # under tensor parallelism: index of the first element of a row on this process

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout must be in [0, 1], but is {p}")
        self.p = p

    def forward(self, x: Tensor, *, call: int = 0, position: int = 0, first: int = 0) -> Tensor:
        """Apply dropout.

        Args:
            x: [B, ..., N].
            call: Index of this call, for a module that is called several times in a step: each call drops different elements.
            position: Position of the first row [..., N] of an example, for a sequence that is processed in parts.
            first: Index of the first of the N elements, for rows that are processed in parts.
        """
        if not self.training or self.p == 0.0:
            return x
        rows = position + torch.arange(x.shape[1:-1].numel(), device=x.device).view(x.shape[1:-1])
        return dropout(x, self.p, site=self.site + call, rows=rows, first=self.first + first)

    def extra_repr(self) -> str:
        """Return the probability, for `repr`."""
        return f"p={self.p}"
