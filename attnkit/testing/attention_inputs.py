"""Random inputs for attention: masks of every form, queries, keys, values and biases."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnkit.masks import Mask
from attnkit.testing.component import HEAD_DIM, NUM_HEADS, NUM_KV_HEADS

BATCH, LENGTH, LONG = 2, 7, 130  # beyond 128 keys, half precision takes a different path on a CPU


@dataclass(frozen=True)
class Inputs:
    """Queries [B, H, T, Dh], keys and values [B, Hkv, T, Dh], a mask and a bias; all tensors are random."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | Tensor | None = None
    attn_bias: Tensor | None = None

    def attend(self, attention: Callable[..., Tensor], *, backend: str = "reference", dropout: float = 0.0) -> Tensor:
        """Return the output of `attention` for the inputs, [B, H, T, Dh]."""
        return attention(self.query, self.key, self.value, mask=self.mask, attn_bias=self.attn_bias, backend=backend, dropout=dropout)


def masks() -> dict[str, Mask | Tensor | None]:
    """Return masks of every form: broadcast along any axis, symbolic, with fully masked rows."""
    full = torch.rand(BATCH, NUM_HEADS, LENGTH, LENGTH) < 0.6
    full[0, 0, 0] = False
    key = torch.rand(BATCH, 1, 1, LENGTH) < 0.6
    key[..., 0] = True
    key[1] = False
    return {
        "none": None,
        "causal": Mask(causal=True),
        "vector": torch.arange(LENGTH) > 1,
        "matrix": full[0, 0],
        "query": torch.arange(LENGTH)[:, None] > 1,
        "key": key,
        "shared": full[:, :1],
        "full": full,
    }


def symbolic_masks() -> dict[str, Mask]:
    """Return the masks of long rows, of which a backend must read every part."""
    stretches = torch.arange(LENGTH).expand(BATCH, -1) // 2
    return {
        "window": Mask(causal=True, window=2),
        "documents": Mask(causal=True, stretches=stretches),
        "documents and window": Mask(window=2, stretches=stretches),
    }


def inputs(
    mask: Mask | Tensor | None = None, *, dtype: torch.dtype = torch.float64, bias: bool = False, size: float = 1.0, length: int = LENGTH
) -> Inputs:
    """Draw inputs with gradients."""

    def draw(heads: int, width: int, size: float = 1.0) -> Tensor:
        return (torch.randn(BATCH, heads, length, width, dtype=torch.float64) * size).to(dtype).requires_grad_()

    return Inputs(
        draw(NUM_HEADS, HEAD_DIM, size),
        draw(NUM_KV_HEADS, HEAD_DIM, size),
        draw(NUM_KV_HEADS, HEAD_DIM),
        mask,
        draw(NUM_HEADS, length) if bias else None,
    )
