"""The score of additive attention for `blocks`, without a hyperbolic tangent for each pair, in eager and in compiled code.

With x = q + k, tanh x = 1 - 2 r and r = 1 / (1 + e^{2q} e^{2k}): exponentials once per query and key, a multiply-add and a reciprocal per
pair. The 1 adds the same number to all logits of a row, so softmax removes it. Exponents are clamped so that no infinity meets a zero. That
is exact unless a large query meets a large key of the opposite sign in the same channel; such inputs take the sigmoid of -2 (q + k).
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attnkit.attention.backend.blocks import LOG2E, Block, Pairs

LIMITS = {torch.float32: (43.0, 10.0), torch.float64: (350.0, 20.0)}
"""The largest |x| whose e^{2x} and e^{-2x} are normal numbers, and the x from which tanh x is 1 to rounding."""
EAGER_NUMBERS = 2**18
"""Numbers, one per pair and channel, that eager code holds at once (1 MiB in fp32)."""

MIN_COMPILED = 2**16
"""Below this many pairs times channels of a head in a block, compiled code is not faster."""


def crossing(query: Tensor, key: Tensor) -> Tensor:
    """Return where a large query [n, Q, A] meets a large key [n, K, A] of the opposite sign, bool [n]: `exponentials` are too few there."""
    limit, saturated = LIMITS[query.dtype]
    ends = [(x.amax(1), x.amin(1)) for x in (query, key)]  # [n, A]
    found = [(one[0] > limit) & (other[1] < saturated - limit) for one, other in (ends, ends[::-1])]
    return (found[0] | found[1]).any(-1)


def exponentials(x: Tensor) -> Tensor:
    """Return e^{2x}, clamped to normal numbers."""
    limit, _ = LIMITS[x.dtype]
    return x.clamp(-limit, limit).mul_(2).exp_()


def logits(q: Tensor, k: Tensor, weight: Tensor, *, exact: bool) -> Tensor:
    """Return sum_a weight_a r_a of all pairs, [Q, K], from [Q, A], [K, A] and [A]."""
    return (_ratios(q, k, exact) * weight).sum(-1)


def slopes(q: Tensor, k: Tensor, gradient: Tensor, *, exact: bool) -> tuple[Tensor, Tensor]:
    """Return the sums over keys of g r (1 - r) and of g r, [Q, A], for the gradients g [Q, K] of the logits."""
    r, g = _ratios(q, k, exact), gradient[..., None]
    return ((r - r * r) * g).sum(1), (r * g).sum(1)


def slope(q: Tensor, k: Tensor, gradient: Tensor, *, exact: bool) -> Tensor:
    """Return the first of `slopes` alone."""
    return slopes(q, k, gradient, exact=exact)[0]


def _ratios(q: Tensor, k: Tensor, exact: bool) -> Tensor:
    """Return r of all pairs and channels, [Q, K, A], from exponentials, or from the projections if `exact`."""
    q, k = q[:, None], k[None]
    return torch.sigmoid(-2 * (q + k)) if exact else 1 / (1 + q * k)


class Tiles:
    """The two computations that hold a number for each pair and channel of a head, a few queries at a time."""

    def logits(self, q: Tensor, k: Tensor, weight: Tensor, *, exact: bool) -> Tensor:
        """Return sum_a weight_a r_a of all pairs, [Q, K], from [Q, A], [K, A] and [A]."""
        found = q.new_empty(len(q), len(k))
        for rows, r in self._few(q, k, exact):
            torch.mv(r.flatten(0, 1), weight, out=found[rows].flatten())
        return found

    def slopes(self, q: Tensor, k: Tensor, gradient: Tensor, *, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sums of g r (1 - r) over keys [Q, A] and over queries [K, A], and of g r over keys [Q, A]."""
        over_keys, weights, over_queries = torch.empty_like(q), torch.empty_like(q), torch.zeros_like(k)
        for rows, r in self._few(q, k, exact):
            g = gradient[rows]  # [few, K]
            torch.bmm(g[:, None], r, out=weights[rows, None])
            slope = r.addcmul_(r, r, value=-1).mul_(g[..., None])
            torch.sum(slope, 1, out=over_keys[rows])
            over_queries += slope.sum(0)
        return over_keys, over_queries, weights

    def _few(self, q: Tensor, k: Tensor, exact: bool) -> Iterator[tuple[slice, Tensor]]:
        """Yield a few queries, and their r [few, K, A], which the next ones overwrite."""
        size = max(1, EAGER_NUMBERS // k.numel())
        held, one = k.new_empty(size, *k.shape), k.new_ones(())
        for start in range(0, len(q), size):
            rows = slice(start, min(start + size, len(q)))
            queries, r = q[rows, None], held[: rows.stop - start]
            if exact:
                torch.add(queries, k, out=r).mul_(-2).sigmoid_()
            else:
                torch.addcmul(one, queries, k, out=r).reciprocal_()
            yield rows, r


class CompiledTiles(Tiles):
    """Compiled at their first use; eager for small tiles, and where the compiler fails, which warns once."""

    def __init__(self) -> None:
        self.compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.failed = False

    def logits(self, q: Tensor, k: Tensor, weight: Tensor, *, exact: bool) -> Tensor:
        """Return those of `Tiles`."""
        found = self._call(logits, q, k, weight, exact)
        return super().logits(q, k, weight, exact=exact) if found is None else found

    def slopes(self, q: Tensor, k: Tensor, gradient: Tensor, *, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return those of `Tiles`."""
        one = self._call(slopes, q, k, gradient, exact)
        other = None if one is None else self._call(slope, k, q, gradient.mT.contiguous(), exact)
        return super().slopes(q, k, gradient, exact=exact) if one is None or other is None else (one[0], other, one[1])

    def _call(self, function: Callable[..., Any], q: Tensor, k: Tensor, third: Tensor, exact: bool) -> Any:
        """Return the function's result, or None where it is not compiled."""
        is_small = q.numel() * len(k) < MIN_COMPILED or min(*q.shape, len(k)) == 1  # each size of 1 would be compiled anew
        if self.failed or is_small:
            return None
        if function not in self.compiled:
            self.compiled[function] = torch.compile(function, dynamic=True, fullgraph=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
                return self.compiled[function](q, k, third, exact=exact)
        except Exception as error:
            self.failed = True
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        warnings.warn(f"additive attention runs without its compiled form, which failed: {reason}", stacklevel=2)
        return None


class AdditivePairs(Pairs):
    """The score of queries [B H, Q, A] and keys [B H, K, A], with weights [H, A]."""

    taller = 2

    def __init__(self, tiles: Tiles, query: Tensor, key: Tensor, weight: Tensor, scale: float) -> None:
        self.tiles, self.scale, self.heads = tiles, scale, len(weight)
        self.exact = bool(crossing(query, key).any())
        if not self.exact:
            query, key = exponentials(query), exponentials(key)
        super().__init__(query, key)
        self.weight = -2 * scale * weight  # what a ratio adds to a logit
        self.d_weight = torch.zeros_like(weight)

    def logits(self, block: Block, bias: Tensor | None) -> Tensor:
        """Return the scores, less what is the same in a row."""
        queries, keys = block.queries(self.query), block.keys(self.key)
        heads = range(block.heads.start, block.heads.stop)
        weights = (self.weight[n % self.heads] * LOG2E for n in heads)
        each = [self.tiles.logits(*part, exact=self.exact) for part in zip(queries, keys, weights, strict=True)]
        found = torch.stack(each) if len(each) > 1 else each[0][None]
        return found if bias is None else found.add_(bias)

    def backward(self, block: Block, gradient: Tensor) -> None:
        """Add up the slopes of each head."""
        for n, g in zip(range(block.heads.start, block.heads.stop), gradient, strict=True):
            query, key = self.query[n, block.rows], self.key[n, block.columns]
            over_keys, over_queries, per_weight = self.tiles.slopes(query, key, g, exact=self.exact)
            self.d_query[n, block.rows] += over_keys
            self.d_key[n, block.columns] += over_queries
            self.d_weight[n % self.heads] += per_weight.sum(0)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sums, scaled: dr/dx = -2 r (1 - r)."""
        turn = -2 * self.weight[:, None]
        d_query, d_key = ((x.view(-1, self.heads, *x.shape[1:]) * turn).flatten(0, 1) for x in (self.d_query, self.d_key))
        return d_query, d_key, -2 * self.scale * self.d_weight
