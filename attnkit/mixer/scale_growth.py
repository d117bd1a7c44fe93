# https://arxiv.org/abs/2501.19399
"""Scaling queries by a factor that grows with the logarithm of their position."""

import torch
from torch import Tensor

from attnkit.mixer.base import Tokens


def grown(query: Tensor, tokens: Tokens, *, growth: float, length: int) -> Tensor:
    """Multiply queries [B, H, T, E] by 1 + growth ln(1 + floor(t / length)), where t is their position in their document.

    Example:
        >>> grown(torch.ones(1, 1, 5, 1), Tokens(positions=torch.arange(5)[None]), growth=0.5, length=2).flatten()
        tensor([1.0000, 1.0000, 1.3466, 1.3466, 1.5493])
    """
    if tokens.positions is None:
        raise ValueError("scale_growth needs the positions of the tokens: pass Tokens(positions=...)")
    t = tokens.positions
    if tokens.starts is not None:
        t = t - torch.where(tokens.starts, t, 0).cummax(1).values
    wide = query.to(torch.promote_types(query.dtype, torch.float32))
    factor = 1 + growth * torch.log1p((t // length).to(wide.dtype))
    return (wide * factor[:, None, :, None]).to(query.dtype)
