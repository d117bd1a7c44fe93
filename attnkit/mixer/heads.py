"""Splitting and joining heads. Mixers do not use einops, because torch.compile would take as long to trace it as everything else."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.registry import ConfigurationError

GateActivation = Literal["sigmoid", "softplus"]


def head_width(mixer: str, width: int, num_heads: int | None, head_dim: int | None = None, *, least: int = 1) -> tuple[int, int]:
    """Return the number of heads and the width of each; raise if the number is missing or does not divide the width.

    The width must be positive, and `head_dim`, if given, at least `least`.

    Example:
        >>> head_width("retention", 64, 4)
        (4, 16)
    """
    if num_heads is None:
        raise ConfigurationError(f"the mixer {mixer!r} needs num_heads: add it to the stack or to the layer")
    if width < 1 or (head_dim is not None and head_dim < least):
        raise ConfigurationError(f"the widths of the mixer {mixer!r} must be positive, but one is {width if width < 1 else head_dim}")
    if head_dim is None and width % num_heads:
        raise ConfigurationError(f"num_heads ({num_heads}) must divide the width {width} of the mixer {mixer!r}")
    return num_heads, width // num_heads if head_dim is None else head_dim


def in_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split [B, T, H N] into [B, H, T, N]."""
    return torch.unflatten(x, -1, (num_heads, -1)).transpose(1, 2)


def writes_in_heads(x: Tensor, num_heads: int, writes: int) -> Tensor:
    """Split [B, T, H W N], for W writes per token, into [B, H, T W, N]."""
    return torch.unflatten(x, -1, (num_heads, writes, -1)).permute(0, 2, 1, 3, 4).flatten(2, 3)


def joined_heads(x: Tensor) -> Tensor:
    """Join [B, H, T, N] into [B, T, H N]."""
    return x.transpose(1, 2).flatten(-2)


def gated(joined: Tensor, logits: Tensor, activation: GateActivation = "sigmoid") -> Tensor:
    """Multiply the heads [B, T, H N] by activations of logits [B, T, H], one per head, or [B, T, H N], one per channel."""
    gate = (logits.sigmoid() if activation == "sigmoid" else F.softplus(logits))[..., None]
    return (torch.unflatten(joined, -1, (gate.shape[-2], -1)) * gate).flatten(-2)
