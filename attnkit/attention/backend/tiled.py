# https://arxiv.org/abs/2205.14135
"""torch's fused kernels a few queries at a time, with only the keys that causality, windows and documents allow."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnkit.attention.backend.base import Inputs, is_symbolic
from attnkit.attention.backend.sdpa import FORWARD, SDPA
from attnkit.attention.base import Attention, InnerProduct, repeat_heads
from attnkit.attention.bias import LazyBias
from attnkit.attention.decay import DecayBias
from attnkit.masks import Mask, combine, starts
from attnkit.registry import backends
from attnkit.transforms import in_forward_mode, observed, transformed

TILE_QUERIES = 128

TILE_ON_GPU = 2**26
"""The maximum number of elements in the bias or mask of a tile on a GPU, which would wait for the host if tiles were small. A tile has at
most 2,048 queries, and at most four times as many as the window."""


@backends.register("tiled")
class Tiled(SDPA):
    r"""`sdpa` in tiles of queries: a window of W keys costs O(T W), and the bias of all queries and keys is never materialised.

    `auto` chooses it if a stack leaves its window, documents, padding or the bias of its positions symbolic, as it does for long sequences.
    On a CPU, it skips the keys of other documents. The backward pass recomputes each tile of a bias. A bias that depends only on the offset
    (ALiBi, relative, KERPLE) is computed once per offset.

    Equation:
        $$\mathrm{attention}(Q, K, V) = [\mathrm{attention}(Q_{c}, K_{r(c)}, V_{r(c)})]_{c}$$

    where r(c) are the keys within reach of the queries c.

    Paper: Dao et al. 2022, https://arxiv.org/abs/2205.14135

    Example:
        >>> import attnkit
        >>> "tiled" in attnkit.attentions.build("scaled_dot_product", head_dim=4).backends
        True
    """

    rank = 25
    options = frozenset({"scale"})
    reads_lazy_bias = True

    def refuses_inputs(self, attention: Attention, inputs: Inputs) -> str | None:
        """Return a reason in forward mode; without sinks, every bias can be shifted into range."""
        return FORWARD if in_forward_mode() else None

    def suits(self, attention: Attention, inputs: Inputs) -> bool:
        """Return whether there is a symbolic window or bias, and no dropout; under torch.func, which recomputes nothing, only a window."""
        return is_symbolic(inputs) and inputs.dropout == 0 and (inputs.bias is None or not transformed())

    def compute(self, attention: Attention, inputs: Inputs) -> Tensor:
        """Return the attention [B, H, Q, Dv]."""
        assert isinstance(attention, InnerProduct)
        query, key, value, mask, bias, dropout, _ = inputs
        assert not isinstance(bias, DecayBias)
        mask, scale = Mask() if mask is None else mask, attention.scale * attention.factor
        key, value = repeat_heads(key, query), repeat_heads(value, query)
        queries, keys = query.shape[-2], key.shape[-2]
        reach = keys if mask.window is None else mask.window - 1
        lowest, highest = _reached(mask, queries)
        outputs: list[Tensor] = []
        size = _queries(query, keys, mask.window)
        # each tile reads some blocks of keys, because the gradient of a slice of all keys would be as long as all keys
        blocks = [torch.split(x, size, -2) for x in (key, value)]
        for rows, start in zip(torch.split(query, size, -2), range(0, queries, size), strict=True):
            stop = start + rows.shape[-2]
            first = max(lowest[start], start - reach) // size
            last = -(-min(highest[stop - 1], stop if mask.causal else stop + reach) // size)
            columns = slice(first * size, min(last * size, keys))
            near_key, near_value = (torch.cat(x[first:last], -2) for x in blocks)
            part = (rows, near_key, near_value, mask, bias, slice(start, stop), columns)
            if bias is None:
                outputs.append(_attend(*part, dropout, scale))
            else:
                outputs.append(checkpoint(_attend, *part, dropout, scale, use_reentrant=False, preserve_rng_state=dropout > 0))
        return torch.cat(outputs, -2)


def _reached(mask: Mask, count: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the first column that each query may read in any example, and the one after the last, as far as their documents say."""
    stretches = mask.stretches
    if (
        stretches is None or not stretches.is_cpu or torch.compiler.is_compiling() or transformed() or observed()
    ):  # these do not read numbers
        return (0,) * count, (count,) * count
    columns = torch.arange(count)
    is_first = starts(stretches)
    lowest = (columns * is_first).cummax(1).values.amin(0)
    after = torch.where(is_first, columns, count).roll(-1, 1)
    after[:, -1] = count
    highest = after.flip(1).cummin(1).values.flip(1).amax(0)
    return lowest.tolist(), highest.tolist()


def _queries(query: Tensor, keys: int, window: int | None) -> int:
    if not query.is_cuda:
        return TILE_QUERIES
    most, reached = (2048, keys) if window is None else (4 * window, min(keys, 12 * window))
    most, fitting = min(2048, most), TILE_ON_GPU // (query.shape[0] * query.shape[1] * reached)
    return max(TILE_QUERIES, min(most, fitting) // TILE_QUERIES * TILE_QUERIES)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, bias: LazyBias | Tensor | None, rows: slice, columns: slice,
    dropout: float, scale: float,
) -> Tensor:  # fmt: skip
    added = _tile(mask, bias, rows, columns, query)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=added, dropout_p=dropout, scale=scale)


def _tile(mask: Mask, bias: LazyBias | Tensor | None, rows: slice, columns: slice, query: Tensor) -> Tensor | None:
    """Return the `attn_mask` of a tile for `scaled_dot_product_attention`: boolean, or a bias with -inf at masked keys; or None."""
    count, device = rows.stop - rows.start, query.device
    given = None if mask.allowed is None else _part(mask.allowed, rows, columns)
    allowed = combine(given, mask.same_stretch(rows, columns))
    # from the offset between the last query of the tile and the first key to that between the first query and the last key
    offsets = torch.arange(columns.start - rows.stop + 1, columns.stop - rows.start, device=device)
    near = mask.near(offsets)
    if isinstance(bias, LazyBias) and bias.by_offset:
        line = bias.line(offsets).squeeze(-2).to(query.dtype)  # [1, H, offsets]
        near = None if near is None else line.masked_fill(~near, float("-inf"))
        added = _by_offset(line if near is None else near, count)
        return added if allowed is None else added.masked_fill(~allowed, float("-inf"))
    if near is not None:
        near = _by_offset(near, count)
        allowed = near if allowed is None else near & allowed
    if bias is None:
        return allowed
    added = bias.tile(rows, columns) if isinstance(bias, LazyBias) else _part(bias, rows, columns)
    added = added.to(query.dtype)
    return added if allowed is None else added.masked_fill(~allowed, float("-inf"))


def _by_offset(line: Tensor, queries: int) -> Tensor:
    """Return [..., Q, K] from the numbers [..., Q + K - 1] of the offsets that `_tile` lists."""
    return line.unfold(-1, line.shape[-1] - queries + 1, 1).flip(-2)


def _part(x: Tensor, rows: slice, columns: slice) -> Tensor:
    """Return a tile of a tensor that broadcasts to [B, H, Q, K]."""
    x = x if x.shape[-2] == 1 else x[..., rows, :]
    return x if x.shape[-1] == 1 else x[..., columns]
