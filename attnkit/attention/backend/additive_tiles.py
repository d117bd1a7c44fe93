"""The score of additive attention for `blocks`, without a tanh for each pair.

With x = q + k, tanh x = 1 - 2 r and r = 1 / (1 + e^{2q} e^{2k}), which takes one exponential per query and per key, and a multiply-add and
a reciprocal per pair. The 1 adds the same number to all logits of a row, so softmax removes it. Exponents are clamped so that no infinity
is multiplied by zero. That is exact unless a large query meets a large key of the opposite sign in the same channel; for such inputs, r is
the sigmoid of -2 (q + k).
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnkit.attention.backend.blocks import LOG2E, Block, Pairs

LIMITS = {torch.float32: (43.0, 10.0), torch.float64: (350.0, 20.0)}
"""The largest |x| for which e^{2x} and e^{-2x} are normal numbers, and the x from which tanh x rounds to 1."""
EAGER_NUMBERS, EAGER_NUMBERS_ON_GPU = 2**18, 2**26
"""The numbers, one per pair and channel, that eager code holds at once: 1 MiB in fp32; on a GPU, 256 MiB."""


def crossing(query: Tensor, key: Tensor) -> Tensor:
    """Return where a large query [n, Q, A] meets a large key [n, K, A] of the opposite sign, bool [n]: `exponentials` are inexact there."""
    limit, saturated = LIMITS[query.dtype]
    ends = [(x.amax(1), x.amin(1)) for x in (query, key)]  # [n, A]
    found = [(one[0] > limit) & (other[1] < saturated - limit) for one, other in (ends, ends[::-1])]
    return (found[0] | found[1]).any(-1)


def exponentials(x: Tensor) -> Tensor:
    """Return e^{2x}, clamped to normal numbers."""
    limit, _ = LIMITS[x.dtype]
    return x.clamp(-limit, limit).mul_(2).exp_()


class Tiles:
    """The two computations with a number for each pair and channel, for a few queries of one head at a time or all of several heads."""

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Return the inputs of the computations: exponentials, or the projections where exponentials are inexact, and which: `exact`."""
        exact = bool(crossing(query, key).any())
        return (query, key, exact) if exact else (exponentials(query), exponentials(key), exact)

    def logits(self, q: Tensor, k: Tensor, weight: Tensor, *, exact: Any) -> Tensor:
        """Return sum_a weight_a r_a of all pairs, [n, Q, K], from [n, Q, A], [n, K, A] and [n, A]."""
        found = q.new_empty(q.shape[:2].numel(), k.shape[1])
        for heads, rows, r in self._few(q, k, exact):
            if len(r) == 1:  # the fastest form; for several heads, a batch of small matrix products would be the slowest
                torch.mv(r.flatten(0, 2), weight[heads.start], out=found[rows].flatten())
            else:
                torch.sum(r.mul_(weight[heads, None, None]).flatten(0, 1), -1, out=found[rows])
        return found.view(*q.shape[:2], -1)

    def slopes(self, q: Tensor, k: Tensor, gradient: Tensor, *, exact: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sums of g r (1 - r) over keys [n, Q, A] and over queries [n, K, A], and of g r over keys [n, Q, A]."""
        over_keys, weights, over_queries = q.new_empty(q.shape).flatten(0, 1), q.new_empty(q.shape).flatten(0, 1), torch.zeros_like(k)
        gradient = gradient.flatten(0, 1)
        for heads, rows, r in self._few(q, k, exact):
            g, each = gradient[rows, None], r.flatten(0, 1)  # [some few, 1, K], [some few, K, A]
            torch.bmm(g, each, out=weights[rows, None])
            torch.sum(each.addcmul_(each, each, value=-1).mul_(g.mT), 1, out=over_keys[rows])
            over_queries[heads] += r.sum(1)
        return over_keys.view(q.shape), over_queries, weights.view(q.shape)

    def _few(self, q: Tensor, k: Tensor, exact: bool) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield slices of some heads and of a few queries, counted over all heads, and their r [some, few, K, A], in reused memory."""
        (heads, queries), per_query, one = q.shape[:2], k[0].numel(), k.new_ones(())
        most = EAGER_NUMBERS_ON_GPU if q.is_cuda else EAGER_NUMBERS
        few = min(queries, max(1, most // per_query))
        some = min(heads, max(1, most // (queries * per_query)))
        held = k.new_empty(some * few * per_query)
        q, k = q.flatten(0, 1)[:, None], k[:, None]
        for first, start in itertools.product(range(0, heads, some), range(0, queries, few)):
            count, size = min(some, heads - first), min(few, queries - start)
            rows = slice(first * queries + start, first * queries + start + count * size)
            part, keys = q[rows].view(count, size, *q.shape[1:]), k[first : first + count]
            r = held[: count * size * per_query].view(count, size, *keys.shape[2:])
            if exact:
                torch.add(part, keys, out=r).mul_(-2).sigmoid_()
            else:
                torch.addcmul(one, part, keys, out=r).reciprocal_()
            yield slice(first, first + count), rows, r


class AdditivePairs(Pairs):
    """The score of queries [B H, Q, A] and keys [B H, K, A], with weights [H, A]."""

    taller = 2

    def __init__(self, tiles: Tiles, query: Tensor, key: Tensor, weight: Tensor, scale: float) -> None:
        self.tiles, self.scale, self.heads = tiles, scale, len(weight)
        query, key, self.exact = tiles.prepare(query, key)
        super().__init__(query, key)
        self.weight = -2 * scale * weight  # the factor of a ratio in a logit
        self.d_weight = torch.zeros_like(weight)

    def logits(self, block: Block, bias: Tensor | None) -> Tensor:
        """Return the scores up to a constant in each row."""
        queries, keys = block.queries(self.query), block.keys(self.key)
        found = self.tiles.logits(queries, keys, self.weight[self.owners(block)] * LOG2E, exact=self.exact)
        return found if bias is None else found.add_(bias)

    def upper_bound(self, block: Block) -> Tensor:
        """Return the largest sum of positive weights, which bounds the logits because ratios are between 0 and 1."""
        return self.weight[self.owners(block)].clamp(min=0).sum(-1).amax() * LOG2E

    def backward(self, block: Block, gradient: Tensor) -> None:
        """Accumulate the slopes of each head."""
        over_keys, over_queries, per_weight = self.tiles.slopes(block.queries(self.query), block.keys(self.key), gradient, exact=self.exact)
        block.queries(self.d_query).add_(over_keys)
        block.keys(self.d_key).add_(over_queries)
        self.d_weight.index_add_(0, self.owners(block), per_weight.sum(1))

    def owners(self, block: Block) -> Tensor:
        """Return the index [n] of each head's weights; the heads of one example follow those of another."""
        return torch.arange(block.heads.start, block.heads.stop, device=self.weight.device) % self.heads

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sums, scaled: dr/dx = -2 r (1 - r)."""
        factor = -2 * self.weight[:, None]
        d_query, d_key = ((x.view(-1, self.heads, *x.shape[1:]) * factor).flatten(0, 1) for x in (self.d_query, self.d_key))
        return d_query, d_key, -2 * self.scale * self.d_weight
