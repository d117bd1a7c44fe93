# https://arxiv.org/abs/1907.01470
"""Learned keys and values that every query may attend to."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.attention import Attention
from attnkit.mixer.base import Tokens
from attnkit.position import QueryBias


class MemoryKeys(nn.Module):
    """Learned keys and values, placed before those of the tokens. They have no position, and no mask or bias applies to them.

    Sukhbaatar et al. 2019, https://arxiv.org/abs/1907.01470 (persistent memory). All are drawn from a normal distribution with unit
    variance, as in the paper, and have no weight decay.

    Example:
        >>> import attnkit
        >>> from attnkit.masks import Mask
        >>> attention = attnkit.attentions.build("dot_product", head_dim=4, num_heads=2)
        >>> x = torch.zeros(1, 2, 3, 4)
        >>> MemoryKeys(5, 2, 4, 4)(attention, x, x, Tokens(mask=Mask(causal=True)))[0].shape
        torch.Size([1, 2, 8, 4])
    """

    undecayed = ("key", "value")

    def __init__(self, num_keys: int, num_kv_heads: int, head_dim: int, value_dim: int) -> None:
        super().__init__()
        self.key = nn.Parameter(torch.empty(num_kv_heads, num_keys, head_dim))
        self.value = nn.Parameter(torch.empty(num_kv_heads, num_keys, value_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw keys and values from a normal distribution with unit variance."""
        nn.init.normal_(self.key)
        nn.init.normal_(self.value)

    def forward(self, attention: Attention, key: Tensor, value: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tokens]:
        """Return the keys [B, Hkv, N + K, E], the values [B, Hkv, N + K, Dv], and `tokens` with N more columns in the mask and the bias."""
        batch, keys, count = key.shape[0], key.shape[-2], self.key.shape[1]
        learned = attention.project_key(self.key.to(key.dtype)[None])
        key = torch.cat([learned.expand(batch, -1, -1, -1), key], -2)
        value = torch.cat([self.value.to(value.dtype).expand(batch, -1, -1, -1), value], -2)

        def padded(x: Tensor) -> Tensor:  # a mask with True, a bias with zero
            return F.pad(x.expand(*x.shape[:-1], keys), (count, 0), value=x.dtype == torch.bool)

        assert not isinstance(tokens.bias, QueryBias)  # attention has already computed it
        # a symbolic causal mask implies as many queries as keys
        return key, value, tokens.changed(padded, queries=keys, keys=keys, device=key.device)
