"""The Triton kernels of `additive_triton`, for the computations with a number for each query, key and channel.

See `additive_tiles` for the equation. Importing triton determines whether its kernels are compiled or interpreted, so import this module
only where it is used.
"""

import os

import triton
import triton.language as tl

IS_COMPILED = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")


@triton.jit
def _ratio(q, k, EXACT: tl.constexpr):
    """Return 1 / (1 + e^{2q} e^{2k}) from exponentials, or from the projections if EXACT, to the last bit but one."""
    x = 1 + (tl.exp(2 * (q + k)) if EXACT else q * k)
    if IS_COMPILED:  # x is at least 1; a division for numbers of any size takes five more instructions; above 2^126, the result is zero
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return 1 / x


@triton.jit
def logits(
    query, key, weight, exact, output, queries, keys,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write sum_a weight_a r_a of a tile of pairs, [n, Q, K], from [n, A, Q], [n, A, K] and [n, A], in which neighbours are contiguous."""
    n = tl.program_id(0).to(tl.int64)
    rows, columns = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    query, key, weight = query + n * CHANNELS * queries + rows, key + n * CHANNELS * keys + columns, weight + n * CHANNELS
    is_row, is_column = rows < queries, columns < keys
    z = tl.zeros([ROWS, COLUMNS], output.dtype.element_ty)
    if tl.load(exact) != 0:
        z = _add_ratios(z, query, key, weight, is_row, is_column, queries, keys, CHANNELS, True)
    else:
        z = _add_ratios(z, query, key, weight, is_row, is_column, queries, keys, CHANNELS, False)
    output += n * queries * keys + rows.to(tl.int64)[:, None] * keys + columns[None, :]
    tl.store(output, z, mask=is_row[:, None] & is_column[None, :])


@triton.jit
def _add_ratios(z, query, key, weight, is_row, is_column, queries, keys, CHANNELS: tl.constexpr, EXACT: tl.constexpr):
    """Return z + sum_a weight_a r_a."""
    for _ in range(CHANNELS):
        q, k = tl.load(query, mask=is_row, other=0)[:, None], tl.load(key, mask=is_column, other=0)[None, :]
        z += tl.load(weight) * _ratio(q, k, EXACT)
        query, key, weight = query + queries, key + keys, weight + 1
    return z


@triton.jit
def slopes(
    one, other, gradient, exact, to_one, to_weight, ones, others, head_step, one_step, other_step,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, PART: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Write the sums over others of g r (1 - r), and of g r unless `to_weight` is None, [n, Q, A], for the gradients g of the logits.

    The inputs are [n, Q, A], [n, K, A] and the gradients, in which the next head, query and key are `head_step`, `one_step` and
    `other_step` numbers away; with queries and keys exchanged, the sums are over queries. Each thread sums over all others.
    """
    n = tl.program_id(0).to(tl.int64)
    rows, channels = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(2) * PART + tl.arange(0, PART)
    is_row, is_channel = rows < ones, channels < CHANNELS
    is_element = is_row[:, None] & is_channel[None, :]
    elements = (n * ones + rows)[:, None] * CHANNELS + channels[None, :]
    x, other = tl.load(one + elements, mask=is_element, other=0), other + n * others * CHANNELS + channels
    gradient += n * head_step + rows.to(tl.int64) * one_step
    sums, products = tl.zeros([ROWS, PART], x.dtype), tl.zeros([ROWS, PART], x.dtype)
    if tl.load(exact) != 0:
        sums, products = _add_slopes(
            sums, products, x, other, gradient, is_row, is_channel, others, other_step, CHANNELS, 1, True, to_weight is not None
        )  # fmt: skip
    else:
        sums, products = _add_slopes(
            sums, products, x, other, gradient, is_row, is_channel, others, other_step, CHANNELS, UNROLL, False, to_weight is not None
        )  # fmt: skip
    tl.store(to_one + elements, sums - products, mask=is_element)
    if to_weight is not None:
        tl.store(to_weight + elements, sums, mask=is_element)


@triton.jit
def _add_slopes(
    sums, products, x, other, gradient, is_row, is_channel, others, step,
    CHANNELS: tl.constexpr, UNROLL: tl.constexpr, EXACT: tl.constexpr, HAS_BOTH: tl.constexpr,
):  # fmt: skip
    """Add the sums over others of g r and of g r^2, or, unless HAS_BOTH, only their difference, to the former."""
    for first in range(0, others, UNROLL):
        for i in tl.static_range(UNROLL):
            is_other = first + i < others
            k = tl.load(other + i * CHANNELS, mask=is_channel & is_other, other=0)[None, :]
            g = tl.load(gradient + i * step, mask=is_row & is_other, other=0)[:, None]
            r = _ratio(x, k, EXACT)
            if HAS_BOTH:
                part = g * r
                sums += part
                products += part * r
            else:
                sums += g * (r - r * r)
        other, gradient = other + UNROLL * CHANNELS, gradient + UNROLL * step
    return sums, products
