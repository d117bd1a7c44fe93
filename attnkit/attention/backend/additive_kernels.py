"""The Triton kernels of `additive_triton`: attention in tiles of queries and keys, forward and backward.

A pair needs a fused multiply-add, a reciprocal and another multiply-add for each channel; see `additive_tiles`
for the equation. Queries and keys are transposed, [B H, A, T], so that a tile reads neighbouring numbers for each channel. Pointers point
to whole tensors in row-major order; optional ones are None. `steps` are the strides of a tensor that broadcasts to [B, H, Q, K].

Importing triton determines whether its kernels are compiled or interpreted, so import this module only where it is used.
"""

import os

import triton
import triton.language as tl

from attnkit import draws as constants

LOWEST = tl.constexpr(-3.4e38)  # finite; logits are in fp32 in half precision
IS_COMPILED = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")
FIRST, SECOND, WORD = tl.constexpr(constants.FIRST), tl.constexpr(constants.SECOND), tl.constexpr(constants.WORD)


@triton.jit
def _mix(word):
    """Return the same as `draws._mix`."""
    word = (word ^ ((word >> 30) & 0x3FFFFFFFF)) * FIRST
    word = (word ^ ((word >> 27) & 0x1FFFFFFFFF)) * SECOND
    return word ^ ((word >> 31) & 0x1FFFFFFFF)


@triton.jit
def _is_kept(bases, columns, lowest_kept):
    """Return which weights [M, N] dropout keeps, from `draws.bases` [M]."""
    column = columns.to(tl.int64)
    word = _mix(bases[:, None] + ((column >> 2) * WORD)[None, :])
    return ((word << (48 - 16 * (column & 3))[None, :]) >> 48) >= lowest_kept


@triton.jit
def _reciprocal(x):
    """Return 1 / x for x >= 1, to the last bit but one; above 2^126 it is zero."""
    if IS_COMPILED:  # division in triton takes five more instructions, for numbers of any size
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return 1 / x


@triton.jit
def _add_scores(z, query, key, weight, rows, columns, queries, keys, CHANNELS: tl.constexpr, EXACT: tl.constexpr):
    """Return z + sum_a weight_a r_a, [M, N], from exponentials, or from the projections if EXACT."""
    query, key, is_row, is_column = query + rows, key + columns, rows < queries, columns < keys
    for _ in range(CHANNELS):
        q, k = tl.load(query, mask=is_row, other=0)[:, None], tl.load(key, mask=is_column, other=0)[None, :]
        product = tl.exp(2 * (q + k)) if EXACT else q * k
        z += tl.load(weight) * _reciprocal(1 + product)
        query, key, weight = query + queries, key + keys, weight + 1
    return z


@triton.jit
def _logits(
    query, key, weight, exact, bias, bias_steps, allowed, allowed_steps, batch, head, rows, columns, queries, keys, lowest, highest,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return the logits of a tile, [M, N], -inf at masked keys and beyond the last one."""
    z = tl.zeros([ROWS, COLUMNS], query.dtype.element_ty)
    if exact:
        z = _add_scores(z, query, key, weight, rows, columns, queries, keys, CHANNELS, True)
    else:
        z = _add_scores(z, query, key, weight, rows, columns, queries, keys, CHANNELS, False)
    offsets = columns[None, :] - rows[:, None]
    near = (offsets >= lowest) & (offsets <= highest) & (columns < keys)[None, :]
    is_pair = near & (rows < queries)[:, None]
    if bias is not None:
        added = tl.load(bias + _offsets(bias_steps, batch, head, rows, columns), mask=is_pair, other=0)
        z += tl.maximum(added.to(z.dtype), LOWEST)
    if allowed is not None:
        near = near & (tl.load(allowed + _offsets(allowed_steps, batch, head, rows, columns), mask=is_pair, other=0) != 0)
    return tl.where(near, z, float("-inf"))


@triton.jit
def _offsets(steps, batch, head, rows, columns):
    """Return the offsets of a tile's elements, [M, N], in a tensor that broadcasts to [B, H, Q, K]."""
    first = batch.to(tl.int64) * steps[0] + head.to(tl.int64) * steps[1]
    return first + rows.to(tl.int64)[:, None] * steps[2] + columns.to(tl.int64)[None, :] * steps[3]


@triton.jit
def forward(
    query, key, value, weight, exact, bias, bias_steps, allowed, allowed_steps, bases, output, sums,
    heads, groups, queries, keys, width, lowest, highest, lowest_kept,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the attention [B H, Q, Dv] of a tile of queries, and the largest logit and the sum of exponentials of each row, [B H, Q, 2].

    The sum is relative to the exponential of the largest logit.
    """
    n, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head, kv = n // heads, n % heads, n // groups
    rows, channels = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    query, weight, exact = query + n * CHANNELS * queries, weight + head * CHANNELS, tl.load(exact + kv)
    key, value = key + kv * CHANNELS * keys, value + kv * keys * width
    dtype = query.dtype.element_ty
    largest = tl.full([ROWS], LOWEST, dtype)
    total, summed = tl.zeros([ROWS], dtype), tl.zeros([ROWS, WIDTH], dtype)
    start = tl.maximum(tile * ROWS + lowest, 0) // COLUMNS * COLUMNS
    for first in range(start, tl.minimum(tl.minimum(tile * ROWS + ROWS, queries) + highest, keys), COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        z = _logits(
            query, key, weight, exact, bias, bias_steps, allowed, allowed_steps, batch, head, rows, columns, queries, keys, lowest, highest,
            CHANNELS, ROWS, COLUMNS,
        )  # fmt: skip
        higher = tl.maximum(largest, tl.max(z, 1))
        shrink, weights = tl.exp(largest - higher), tl.exp(z - higher[:, None])
        largest, total = higher, total * shrink + tl.sum(weights, 1)
        if bases is not None:
            drawn = tl.load(bases + n * queries + rows, mask=rows < queries, other=0)
            weights = tl.where(_is_kept(drawn, columns, lowest_kept), weights, 0)
        is_value = (columns < keys)[:, None] & (channels < width)[None, :]
        v = tl.load(value + columns[:, None] * width + channels[None, :], mask=is_value, other=0).to(dtype)
        summed = summed * shrink[:, None] + tl.dot(weights, v, input_precision="ieee", out_dtype=dtype)
    total = tl.maximum(total, 1e-37)  # a smaller constant is not a normal fp32 number, and triton would make it float64
    pointers = output + n * queries * width + rows[:, None] * width + channels[None, :]
    tl.store(pointers, summed / total[:, None], mask=(rows < queries)[:, None] & (channels < width)[None, :])
    sums += (n * queries + rows) * 2
    tl.store(sums, largest, mask=rows < queries)
    tl.store(sums + 1, total, mask=rows < queries)


@triton.jit
def _add_slopes(
    g, query, key, weight, d_query, d_key, d_weight, rows, columns, queries, keys, CHANNELS: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """Add the sums of g w r (1 - r) over keys and over queries, and of g r over both, for the gradients g [M, N] of the logits."""
    query, key, is_row, is_column = query + rows, key + columns, rows < queries, columns < keys
    d_query, d_key = d_query + rows, d_key + columns
    for _ in range(CHANNELS):
        q, k = tl.load(query, mask=is_row, other=0)[:, None], tl.load(key, mask=is_column, other=0)[None, :]
        product = tl.exp(2 * (q + k)) if EXACT else q * k
        r = _reciprocal(1 + product)
        part, w = g * r, tl.load(weight)
        slope = part - part * r
        tl.atomic_add(d_query, tl.sum(slope, 1) * w, mask=is_row, sem="relaxed")
        tl.atomic_add(d_key, tl.sum(slope, 0) * w, mask=is_column, sem="relaxed")
        tl.atomic_add(d_weight, tl.sum(part), sem="relaxed")
        query, key, weight = query + queries, key + keys, weight + 1
        d_query, d_key, d_weight = d_query + queries, d_key + keys, d_weight + 1


@triton.jit
def backward(
    query, key, value, weight, exact, bias, bias_steps, allowed, allowed_steps, bases, sums, inner, gradient,
    d_query, d_key, d_value, d_weight, d_bias, d_bias_steps,
    heads, groups, queries, keys, width, lowest, highest, lowest_kept,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the contribution of a tile of keys to the gradients of queries [B H, A, Q], keys [B Hkv, A, K], values [B Hkv, K, Dv],
    weights [B H, A] and the bias. Those of queries, keys and weights still lack a constant factor.

    `inner` are the products of the outputs with their gradients, [B H, Q].
    """
    n, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head, kv = n // heads, n % heads, n // groups
    columns, channels = tile * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    query, weight, exact = query + n * CHANNELS * queries, weight + head * CHANNELS, tl.load(exact + kv)
    key, value = key + kv * CHANNELS * keys, value + kv * keys * width
    dtype = query.dtype.element_ty
    d_query, d_weight, d_key = d_query + n * CHANNELS * queries, d_weight + n * CHANNELS, d_key + kv * CHANNELS * keys
    is_value = (columns < keys)[:, None] & (channels < width)[None, :]
    v = tl.load(value + columns[:, None] * width + channels[None, :], mask=is_value, other=0).to(dtype)
    to_value = tl.zeros([COLUMNS, WIDTH], dtype)
    start = tl.maximum(tile * COLUMNS - highest, 0) // ROWS * ROWS
    for first in range(start, tl.minimum(tl.minimum(tile * COLUMNS + COLUMNS, keys) - lowest, queries), ROWS):
        rows = first + tl.arange(0, ROWS)
        z = _logits(
            query, key, weight, exact, bias, bias_steps, allowed, allowed_steps, batch, head, rows, columns, queries, keys, lowest, highest,
            CHANNELS, ROWS, COLUMNS,
        )  # fmt: skip
        row_sums = sums + (n * queries + rows) * 2
        largest = tl.load(row_sums, mask=rows < queries, other=float("inf"))  # no weights beyond the last row
        total = tl.load(row_sums + 1, mask=rows < queries, other=1)
        weights = tl.exp(z - largest[:, None]) * (1 / total)[:, None]
        is_row = (rows < queries)[:, None] & (channels < width)[None, :]
        pointers = gradient + n * queries * width + rows[:, None] * width + channels[None, :]
        g = tl.load(pointers, mask=is_row, other=0).to(dtype)
        d_weights = tl.dot(g, tl.trans(v), input_precision="ieee", out_dtype=dtype)
        dropped = weights
        if bases is not None:
            kept = _is_kept(tl.load(bases + n * queries + rows, mask=rows < queries, other=0), columns, lowest_kept)
            dropped, d_weights = tl.where(kept, weights, 0), tl.where(kept, d_weights, 0)
        to_value += tl.dot(tl.trans(dropped), g, input_precision="ieee", out_dtype=dtype)
        d_logits = weights * (d_weights - tl.load(inner + n * queries + rows, mask=rows < queries, other=0)[:, None])
        if d_bias is not None:
            is_pair = (rows < queries)[:, None] & (columns < keys)[None, :]
            tl.atomic_add(d_bias + _offsets(d_bias_steps, batch, head, rows, columns), d_logits, mask=is_pair, sem="relaxed")
        if exact:
            _add_slopes(d_logits, query, key, weight, d_query, d_key, d_weight, rows, columns, queries, keys, CHANNELS, True)
        else:
            _add_slopes(d_logits, query, key, weight, d_query, d_key, d_weight, rows, columns, queries, keys, CHANNELS, False)
    pointers = d_value + kv * keys * width + columns[:, None] * width + channels[None, :]
    tl.atomic_add(pointers, to_value, mask=is_value, sem="relaxed")
