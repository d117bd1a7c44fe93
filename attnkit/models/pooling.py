"""Pooling, which turns the vectors of a sequence into one vector."""

from typing import Literal

import torch
from torch import Tensor, nn

from attnkit.linear import Linear

Pooling = Literal["class_token", "mean", "last", "none"]


def pool(x: Tensor, key_mask: Tensor | None, pooling: Pooling) -> Tensor:
    """Return one vector for each sequence [B, T, D], [B, D]: the first, the last or the mean of all real tokens; with `none`, all tokens.

    Padding (False in `key_mask` [B, T]) may be on either side. The mean of a sequence without real tokens is zero.

    Example:
        >>> x = torch.tensor([[[1.0], [2.0], [6.0]]])
        >>> mask = torch.tensor([[True, True, False]])
        >>> [pool(x, mask, kind).item() for kind in ("class_token", "mean", "last")]
        [1.0, 1.5, 2.0]
    """
    if pooling == "none":
        return x
    if key_mask is None:
        return x.mean(1) if pooling == "mean" else x[:, 0 if pooling == "class_token" else -1]
    if pooling == "mean":
        real = key_mask.unsqueeze(-1)  # [B, T, 1]
        return x.where(real, 0).sum(1) / real.sum(1).clamp(min=1)
    order = torch.arange(x.shape[1], device=x.device)
    place = (order if pooling == "last" else -order).masked_fill(~key_mask, -x.shape[1]).argmax(1)  # [B]
    return x[torch.arange(len(x), device=x.device), place]


class Pooler(nn.Module):
    r"""BERT's dense layer before the classes: $\tanh(W x + b)$.

    Paper: Devlin et al. 2019, https://arxiv.org/abs/1810.04805 (in their code)
    """

    def __init__(self, *, d_model: int) -> None:
        super().__init__()
        self.dense = Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `x` [B, D]."""
        return torch.tanh(self.dense(x))
