"""Additive attention by tiles of queries, recomputed in the backward pass, without a hyperbolic tangent for each pair.

With x = q + k, tanh x = 1 - 2 r and r = 1 / (1 + e^{2q} e^{2k}): exponentials once per query and key, a multiply-add and a reciprocal per
pair. The 1 adds the same number to all logits of a row, so softmax removes it. Exponents are clamped so that no infinity meets a zero. That
is exact unless a large query meets a large key of the opposite sign in the same channel; such inputs take the sigmoid of -2 (q + k).
"""

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnkit.attention.backend.reference import MOST_HEADS
from attnkit.dropout import is_dropped, kept_scale

LIMITS = {torch.float32: (43.0, 10.0), torch.float64: (350.0, 20.0)}
"""The largest |x| whose e^{2x} and e^{-2x} are normal numbers, and the x from which tanh x is 1 to rounding."""
TILE_PAIRS = 2**19
"""Pairs of queries and keys in a tile."""
EAGER_NUMBERS = 2**18
"""Numbers, one per pair and channel, that eager code holds at once (1 MiB in fp32)."""

MIN_COMPILED = 2**16
"""Below this many pairs times channels of a tile, compiled code is not faster."""


def logits(q: Tensor, k: Tensor, weight: Tensor, *, exact: bool) -> Tensor:
    """Return sum_a weight_a r_a of all pairs, [N, Q, K], from [N, Q, A], [N, K, A] and [N, A]."""
    return (_ratios(q, k, exact) * weight[:, None, None]).sum(-1)


def slopes(q: Tensor, k: Tensor, gradient: Tensor, *, exact: bool) -> tuple[Tensor, Tensor]:
    """Return the sums over keys of g r (1 - r) and of g r, [N, Q, A], for the gradients g [N, Q, K] of the logits."""
    r, g = _ratios(q, k, exact), gradient[..., None]
    return ((r - r * r) * g).sum(2), (r * g).sum(2)


def _ratios(q: Tensor, k: Tensor, exact: bool) -> Tensor:
    """Return r of all pairs and channels, [N, Q, K, A], from exponentials, or from the projections if `exact`."""
    q, k = q[:, :, None], k[:, None]
    return torch.sigmoid(-2 * (q + k)) if exact else 1 / (1 + q * k)


class Tiles:
    """The two computations that hold a number for each pair and channel, a few queries of a head at a time."""

    def logits(self, q: Tensor, k: Tensor, weight: Tensor, *, exact: bool) -> Tensor:
        """Return sum_a weight_a r_a of all pairs, [N, Q, K], from [N, Q, A], [N, K, A] and [N, A]."""
        found = q.new_empty(*q.shape[:2], k.shape[1])
        for n, rows, r in self._few(q, k, exact):
            torch.mv(r.flatten(0, 1), weight[n], out=found[n, rows].flatten())
        return found

    def slopes(self, q: Tensor, k: Tensor, gradient: Tensor, *, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sums of g r (1 - r) over keys [N, Q, A] and over queries [N, K, A], and of g r over keys [N, Q, A]."""
        over_keys, weights, over_queries = q.new_empty(q.shape), q.new_empty(q.shape), torch.zeros_like(k)
        for n, rows, r in self._few(q, k, exact):
            g = gradient[n, rows]  # [few, K]
            torch.bmm(g[:, None], r, out=weights[n, rows, None])
            slope = r.addcmul_(r, r, value=-1).mul_(g[..., None])
            torch.sum(slope, 1, out=over_keys[n, rows])
            over_queries[n] += slope.sum(0)
        return over_keys, over_queries, weights

    def _few(self, q: Tensor, k: Tensor, exact: bool) -> Iterator[tuple[int, slice, Tensor]]:
        """Yield a head, a few queries, and their r [few, K, A], which the next ones overwrite."""
        size = max(1, EAGER_NUMBERS // k[0].numel())
        held, one = k.new_empty(size, *k.shape[1:]), k.new_ones(())
        for n, start in itertools.product(range(len(q)), range(0, q.shape[1], size)):
            rows = slice(start, min(start + size, q.shape[1]))
            queries, keys, r = q[n, rows, None], k[n, None], held[: rows.stop - start]
            if exact:
                torch.add(queries, keys, out=r).mul_(-2).sigmoid_()
            else:
                torch.addcmul(one, queries, keys, out=r).reciprocal_()
            yield n, rows, r


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
        other = None if one is None else self._call(slopes, k, q, gradient.mT.contiguous(), exact)
        return super().slopes(q, k, gradient, exact=exact) if one is None or other is None else (one[0], other[0], one[1])

    def _call(self, function: Callable[..., Any], q: Tensor, k: Tensor, third: Tensor, exact: bool) -> Any:
        """Return the function's result, or None where it is not compiled."""
        is_small = q.numel() * k.shape[1] < MIN_COMPILED or min(*q.shape, k.shape[1]) == 1  # each size of 1 would be compiled anew
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


_tiles = (Tiles(), CompiledTiles())


class _Call(NamedTuple):
    """What both passes need: inputs with a batch of N = B H, in fp32 or float64."""

    q: Tensor  # [N, Q, A], exponentials unless `exact`
    k: Tensor  # [N, K, A]
    value: Tensor  # [N, K, Dv]
    weight: Tensor  # [N, A]: what a ratio adds to a logit
    bias: Tensor | None
    allowed: Tensor | None
    keys: Tensor | None
    causal: bool
    dropout: float
    numbers: list[int]  # of heads: the first, the number; the site of dropout; the first query
    exact: bool
    held: Tiles

    def tiles(self) -> Iterator[tuple[slice, int]]:
        """Yield a few queries, and how many keys they may read."""
        queries, keys = self.q.shape[1], self.k.shape[1]
        size = max(1, TILE_PAIRS // (self.q.shape[0] * keys))
        for start in range(0, queries, size):
            stop = min(start + size, queries)
            yield slice(start, stop), min(stop, keys) if self.causal else keys

    def logits(self, rows: slice, keys: int) -> Tensor:
        """Return the logits of a tile, [B, H, rows, keys], -inf at masked keys."""
        found = self.held.logits(self.q[:, rows], self.k[:, :keys], self.weight, exact=self.exact)
        found = found.view(-1, self.numbers[1], *found.shape[1:])
        if self.bias is not None:
            found = found + _part(self.bias, rows, keys)
        if self.causal:
            columns = torch.arange(keys, device=found.device)
            found = found.masked_fill(columns > columns[rows][:, None], float("-inf"))
        return found if self.allowed is None else found.masked_fill(~_part(self.allowed, rows, keys), float("-inf"))

    def dropped(self, rows: slice, keys: int) -> Tensor | None:
        """Return which weights of a tile are dropped, [B, H, rows, keys]: those that the reference drops."""
        if self.keys is None:
            return None
        first_head, heads, site, first_query = self.numbers
        device = self.keys.device
        queries = first_query + torch.arange(rows.start, rows.stop, device=device)
        numbers = queries * MOST_HEADS + (first_head + torch.arange(heads, device=device))[:, None]  # [H, rows]
        return is_dropped(self.keys, self.dropout, site=site, rows=numbers, columns=keys)


def _part(x: Tensor, rows: slice, keys: int) -> Tensor:
    """Return a tile of what broadcasts to [B, H, Q, K]."""
    x = x if x.shape[-2] == 1 else x[..., rows, :]
    return x if x.shape[-1] == 1 else x[..., :keys]


def _prepare(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, allowed: Tensor | None, keys: Tensor | None,
    causal: bool, scale: float, dropout: float, numbers: list[int], is_compiled: bool,
) -> _Call:  # fmt: skip
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    limit, saturated = LIMITS[dtype]
    groups = query.shape[1] // key.shape[1]
    q = query.to(dtype).flatten(0, 1)
    k, v = (x.to(dtype).repeat_interleave(groups, 1).flatten(0, 1) for x in (key, value))
    ends = [(x.amax(1), x.amin(1)) for x in (q, k)]  # [N, A]
    crossing = [(one[0] > limit) & (other[1] < saturated - limit) for one, other in (ends, ends[::-1])]
    exact = bool((crossing[0] | crossing[1]).any())
    if not exact:
        q, k = (x.clamp(-limit, limit).mul_(2).exp_() for x in (q, k))
    w = (-2 * scale * weight.to(dtype)).repeat(query.shape[0], 1)
    return _Call(q, k, v, w, bias, allowed, keys, causal, dropout, numbers, exact, _tiles[is_compiled])


@torch.library.custom_op("attnkit::additive", mutates_args=())
def attend(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, allowed: Tensor | None, keys: Tensor | None,
    causal: bool, scale: float, dropout: float, numbers: list[int], is_compiled: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the attention [B, H, Q, Dv], and the logarithms of the sums of exponentials of each row, [B, H, Q, 1].

    Args:
        query: Projected queries [B, H, Q, A].
        key: Projected keys [B, Hkv, K, A].
        value: [B, Hkv, K, Dv].
        weight: [H, A].
        bias: Broadcasts to [B, H, Q, K], or None.
        allowed: Bool, likewise; no row is empty.
        keys: Of the examples, int64 [B], where weights are dropped; or None.
        causal: Whether the key's index must not exceed the query's.
        scale: What multiplies the scores.
        dropout: Probability of dropping a weight.
        numbers: The first head, the number of heads, the site of dropout, the first query.
        is_compiled: Whether to use the compiled form.
    """
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        call = _prepare(query, key, value, weight, bias, allowed, keys, causal, scale, dropout, numbers, is_compiled)
        outputs, sums = [], []
        for rows, width in call.tiles():
            z = call.logits(rows, width)
            largest = z.amax(-1, keepdim=True)
            weights = z.sub_(largest).exp_()
            total = weights.sum(-1, keepdim=True)
            sums.append(total.log().add_(largest))
            if (dropped := call.dropped(rows, width)) is not None:
                weights = weights.masked_fill_(dropped, 0.0).mul_(kept_scale(dropout))
            outputs.append((weights.flatten(0, 1) @ call.value[:, :width]).div_(total.flatten(0, 1)))
        return torch.cat(outputs, 1).view(*query.shape[:3], -1).to(value.dtype), torch.cat(sums, -2)


@attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return value.new_empty(*query.shape[:3], value.shape[-1]), query.new_empty(*query.shape[:3], 1, dtype=dtype)


@torch.library.custom_op("attnkit::additive_backward", mutates_args=())
def attend_backward(
    gradient: Tensor, output: Tensor, sums: Tensor, needs_bias: bool,
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, allowed: Tensor | None, keys: Tensor | None,
    causal: bool, scale: float, dropout: float, numbers: list[int], is_compiled: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of queries, keys, values, weights and (if `needs_bias`, otherwise empty) the bias."""
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        call = _prepare(query, key, value, weight, bias, allowed, keys, causal, scale, dropout, numbers, is_compiled)
        dtype, heads = call.q.dtype, query.shape[:2]
        g = gradient.to(dtype).flatten(0, 1)  # [N, Q, Dv]
        inner = (g * output.to(dtype).flatten(0, 1)).sum(-1, keepdim=True)
        d_query, d_key, d_value = torch.empty_like(call.q), torch.zeros_like(call.k), torch.zeros_like(call.value)
        d_weight, d_bias = torch.zeros_like(call.weight), sums.new_zeros(bias.shape if bias is not None and needs_bias else 0)
        for rows, width in call.tiles():
            weights = call.logits(rows, width).sub_(sums[..., rows, :]).exp_().flatten(0, 1)  # [N, rows, keys]
            d_kept = g[:, rows] @ call.value[:, :width].mT
            kept = weights
            if (dropped := call.dropped(rows, width)) is not None:
                dropped = dropped.flatten(0, 1)
                kept, d_kept = (x.masked_fill(dropped, 0.0).mul_(kept_scale(dropout)) for x in (weights, d_kept))
            d_value[:, :width] += kept.mT @ g[:, rows]
            d_logits = d_kept.sub_(inner[:, rows]).mul_(weights)
            d_query[:, rows], over_queries, per_weight = call.held.slopes(call.q[:, rows], call.k[:, :width], d_logits, exact=call.exact)
            d_key[:, :width] += over_queries
            d_weight += per_weight.sum(1)
            if bias is not None and needs_bias:
                target = _part(d_bias, rows, width)
                target += d_logits.view(*heads, *d_logits.shape[1:]).sum_to_size(target.shape)
        turn = -2 * call.weight[:, None]  # dr/dx = -2 r (1 - r)
        d_key, d_value = (_sum_groups(x, key) for x in (d_key * turn, d_value))
        return (
            (d_query * turn).view(query.shape).to(query.dtype),
            d_key.to(key.dtype),
            d_value.to(value.dtype),
            (-2 * scale * d_weight).view(-1, *weight.shape).sum(0).to(weight.dtype),
            d_bias if bias is None else d_bias.to(bias.dtype),
        )


@attend_backward.register_fake
def _(
    gradient: Tensor, output: Tensor, sums: Tensor, needs_bias: bool,
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None, *others: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    found = [x.new_empty(x.shape) for x in (query, key, value, weight)]
    d_bias = sums.new_empty(0) if bias is None else bias.new_empty(bias.shape if needs_bias else 0)
    return found[0], found[1], found[2], found[3], d_bias


def _sum_groups(x: Tensor, key: Tensor) -> Tensor:
    """Sum what the query heads of a key head give, [B H, K, E] -> [B, Hkv, K, E]."""
    batch, heads, keys, _ = key.shape
    return x.view(batch, heads, -1, keys, x.shape[-1]).sum(2)


def _keep(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.others = inputs[7:]


def _backward(ctx, gradient: Tensor, _: Tensor) -> tuple[object, ...]:  # type: ignore[no-untyped-def]
    *inputs, output, sums = ctx.saved_tensors
    found = attend_backward(gradient, output, sums, ctx.needs_input_grad[4], *inputs, *ctx.others)
    return *found[:4], found[4] if ctx.needs_input_grad[4] else None, *[None] * 7


attend.register_autograd(_backward, setup_context=_keep)


@register_flop_formula(torch.ops.attnkit.additive)
def _flops(query: torch.Size, key: torch.Size, value: torch.Size, *_: object, **__: object) -> int:
    """Count as for the reference: the products with the weights of the score, and with the values."""
    return 2 * query[0] * query[1] * query[2] * key[2] * (query[3] + value[3])


@register_flop_formula(torch.ops.attnkit.additive_backward)
def _backward_flops(gradient: object, output: object, sums: object, needs_bias: object, *sizes: torch.Size, **_: object) -> int:
    return 2 * _flops(*sizes[:3])
