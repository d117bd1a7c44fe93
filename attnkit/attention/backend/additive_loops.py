r"""Loops in C++ over all pairs and channels of additive attention, compiled at first use and cached.

Both compute $r = 1 / (1 + q k)$ from exponentials. A division takes longer than all other operations of a pair and channel together, so two
share one: with $d = 1 + q k$ and $e$ for another channel or query, $1 / d = e / (d e)$. Where $d$ could exceed $2^{60}$, it is bounded by
that, which changes $r$ by less than $10^{-18}$ and keeps $d e$ finite.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

from attnkit import cpp

LANES = 16
"""The numbers of channels and of keys must be multiples of this: the floats in the largest register."""

MIN_THREADED = 2**23
"""From this many pairs times channels on, which take over a millisecond, several threads compute."""

SOURCE = r"""
#include <algorithm>
#include <cstddef>

#if defined(__AVX512F__)
enum { WIDTH = 16 };
#elif defined(__AVX__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
enum { COLUMNS = 4, TILE = 32 };
typedef std::ptrdiff_t size;
typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef float loose __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));  // may stand at any address

static inline loose &at(const float *x) { return *(loose *)x; }

template <bool is_far> static inline vec bounded(vec x) {
  vec most = vec{} + 0x1p60f;
  return is_far ? (most < x ? most : x) : x;  // keeps NaN
}

static bool is_far(const float *query, const float *key, size queries, size keys) {
  float q = *std::max_element(query, query + queries), k = *std::max_element(key, key + keys);
  return !(q * k < 0x1p60f);
}

// out[q, k] = sum over channels of weight / (1 + query key), for `columns` vectors of keys; key is [channels, keys]
template <bool far, int columns>
static void row(const float *query, const float *key, const float *weight, float *out, size keys, size channels) {
  vec sums[columns] = {};
  for (size a = 0; a < channels; a += 2)
    for (int i = 0; i < columns; i++) {
      vec d = bounded<far>(1 + query[a] * at(key + a * keys + i * WIDTH));
      vec e = bounded<far>(1 + query[a + 1] * at(key + (a + 1) * keys + i * WIDTH));
      sums[i] += (weight[a] * e + weight[a + 1] * d) / (d * e);
    }
  for (int i = 0; i < columns; i++) at(out + i * WIDTH) = sums[i];
}

template <bool far>
static void logits_of(const float *query, const float *key, const float *weight, float *out, size queries, size keys, size channels) {
  size k = 0;
  for (; k + COLUMNS * WIDTH <= keys; k += COLUMNS * WIDTH)
    for (size q = 0; q < queries; q++) row<far, COLUMNS>(query + q * channels, key + k, weight, out + q * keys + k, keys, channels);
  for (; k < keys; k += WIDTH)
    for (size q = 0; q < queries; q++) row<far, 1>(query + q * channels, key + k, weight, out + q * keys + k, keys, channels);
}

// adds the sums of t (1 - r) over keys and over queries, and of t over keys; t = g r, with the gradients g [queries, keys] of the logits
template <bool far>
static void slopes_of(const float *query, const float *key, const float *gradient, float *over_keys, float *over_queries, float *weights,
                      size queries, size keys, size channels) {
  for (size first = 0; first < keys; first += TILE)
    for (size a = 0; a < channels; a += WIDTH) {
      int count = std::min<size>(TILE, keys - first);
      vec held[TILE], sums[TILE];
      for (int k = 0; k < count; k++) held[k] = at(key + (first + k) * channels + a), sums[k] = vec{};
      for (size q = 0; q < queries; q += 2) {
        const float *g = gradient + q * keys + first, *h = g + keys;
        size one = q * channels + a, two = one + channels;
        vec x = at(query + one), y = at(query + two), one_sum{}, two_sum{}, one_weight{}, two_weight{};
        for (int k = 0; k < count; k++) {
          vec d = bounded<far>(1 + x * held[k]), e = bounded<far>(1 + y * held[k]), both = 1 / (d * e), r = both * e, s = both * d;
          vec t = g[k] * r, u = h[k] * s;
          one_weight += t, two_weight += u;
          t -= t * r, u -= u * s;
          one_sum += t, two_sum += u;
          sums[k] += t + u;
        }
        at(over_keys + one) += one_sum, at(over_keys + two) += two_sum;
        at(weights + one) += one_weight, at(weights + two) += two_weight;
      }
      for (int k = 0; k < count; k++) at(over_queries + (first + k) * channels + a) += sums[k];
    }
}

// of each of `heads` heads, only some of `all` queries
extern "C" {
void logits(const float *query, const float *key, const float *weight, float *out, size heads, size all, size queries, size keys,
            size channels) {
  for (size n = 0; n < heads; n++, query += all * channels, key += keys * channels, weight += channels, out += all * keys) {
    auto f = is_far(query, key, queries * channels, keys * channels) ? logits_of<true> : logits_of<false>;
    f(query, key, weight, out, queries, keys, channels);
  }
}
void slopes(const float *query, const float *key, const float *gradient, float *over_keys, float *over_queries, float *weights, size heads,
            size all, size queries, size keys, size channels) {
  for (size n = 0; n < heads; n++) {
    size q = n * all * channels, k = n * keys * channels;
    auto f = is_far(query + q, key + k, queries * channels, keys * channels) ? slopes_of<true> : slopes_of<false>;
    f(query + q, key + k, gradient + n * all * keys, over_keys + q, over_queries + k, weights + q, queries, keys, channels);
  }
}
}
"""


@cache
def loops() -> ctypes.CDLL:
    """Return the compiled loops, `logits` and `slopes`; see `attnkit.cpp.load` for its errors."""
    found = cpp.load("additive", SOURCE)
    for function, pointers in ((found.logits, 4), (found.slopes, 6)):
        function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_ssize_t] * 5
        function.restype = None
    return found


Share = tuple[slice, slice, int]
"""Some heads, some of their queries (an even number of them, except at the end), and the number of this part of the queries."""


def shares(heads: int, queries: int, numbers: int) -> list[Share]:
    """Return the shares of the threads in a computation with this many numbers: some of the heads or, of few heads, some of the queries."""
    threads = torch.get_num_threads() if numbers >= MIN_THREADED else 1
    if threads <= heads:
        size = -(-heads // threads)
        return [(slice(start, min(start + size, heads)), slice(0, queries), 0) for start in range(0, heads, size)]
    size = 2 * -(-queries // (2 * threads))
    return [(slice(0, heads), slice(start, min(start + size, queries)), i) for i, start in enumerate(range(0, queries, size))]


def spread(compute: Callable[[Share], None], among: list[Share]) -> None:
    """Compute each share in a thread of its own; the loops release the interpreter's lock."""
    if len(among) == 1:
        compute(among[0])
        return
    with ThreadPoolExecutor(len(among)) as pool:
        list(pool.map(compute, among))
