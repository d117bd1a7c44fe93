# https://arxiv.org/abs/2412.05496
"""Masks for FlexAttention, with the blocks of queries and keys that remain."""

from functools import lru_cache, reduce
from operator import and_

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attnkit.masks import Mask

BLOCK = 128
"""The number of queries and of keys in a block; it is skipped if causality or the window masks all its pairs."""


def block_mask(mask: Mask, query: Tensor, key: Tensor) -> BlockMask | None:
    """Return the mask for `flex_attention` of queries [B, H, Q, E] and keys [B, Hkv, K, E], or None if it allows everything."""
    sizes = (query.shape[-2], key.shape[-2], query.device)
    if mask.allowed is not None or mask.stretches is not None:
        return _masked(mask, None if mask.allowed is None else mask.allowed.expand(*query.shape[:2], *sizes[:2]), *sizes)
    return None if mask.window is None and not mask.causal else _symbolic(mask.causal, mask.window, *sizes)


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # training cannot use tensors that were created in inference mode
def _symbolic(causal: bool, window: int | None, queries: int, keys: int, device: torch.device) -> BlockMask:
    return _masked(Mask(causal=causal, window=window), None, queries, keys, device)


def _masked(mask: Mask, allowed: Tensor | None, queries: int, keys: int, device: torch.device) -> BlockMask:
    def allow(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        near = mask.near(k - q)
        same = None if mask.stretches is None else mask.stretches[b, q] == mask.stretches[b, k]
        given = None if allowed is None else allowed[b, h, q, k]
        return reduce(and_, (part for part in (near, same, given) if part is not None))

    some, every = blocks(mask, queries, keys, device)
    every = every if allowed is None and mask.stretches is None else torch.zeros_like(every)
    return BlockMask.from_kv_blocks(*_listed(some & ~every), *_listed(every), BLOCK, allow, (queries, keys))


def blocks(mask: Mask, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return in which blocks [rows, columns] causality and the window allow some pair, and in which full-size blocks every pair."""
    rows, columns = (torch.arange(-(-count // BLOCK), device=device) for count in (queries, keys))
    offsets = (columns - rows[:, None]) * BLOCK  # from a block's first query to its first key
    reach = BLOCK - 1  # offsets of other pairs differ by up to this
    some, first, last = (mask.near(x) for x in (offsets - offsets.clamp(-reach, reach), offsets - reach, offsets + reach))
    if some is None or first is None or last is None:  # all three at once: neither causality nor a window
        some = first = last = torch.ones_like(offsets, dtype=torch.bool)
    whole = (rows < queries // BLOCK)[:, None] & (columns < keys // BLOCK)
    return some, first & last & whole


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks are chosen in each row [1, 1, rows], and their columns, followed by the others [1, 1, rows, columns]."""
    order = torch.argsort(chosen.int(), dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32)[None, None], order.int()[None, None]
