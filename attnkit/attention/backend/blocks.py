"""Blocks of queries and keys, and their logits, for any score.

Logits are in units of ln 2, because 2^x is faster than e^x. Queries are in reverse order: numbers that depend only on the offset of a key
from a query are then a view of one line, in which each row starts one number later than the row above.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from attnkit.attention.backend.reference import MOST_HEADS
from attnkit.dropout import is_dropped, kept_scale
from attnkit.masks import document

LOG2E = 1.4426950408889634
ROWS, COLUMNS, PAIRS = 256, 512, 2**17
"""The maximum numbers of queries and of keys in a block, and the approximate number of pairs over all its heads: 512 KiB in fp32."""
ON_GPU = 1024, 2**14, 2**24
"""The same on a GPU, where launching a kernel takes longer: 64 MiB."""

LEAST = {torch.float32: -152, torch.float64: -1080}
"""Below these exponents, 2^x is zero, with some margin for rounding: the smallest positive numbers are 2^-149 and 2^-1074."""


class Block(NamedTuple):
    """Some queries and keys of n heads: several heads of one example, or all heads of several examples."""

    heads: slice  # of B H
    rows: slice  # of the reversed queries
    columns: slice
    shape: tuple[int, int, int, int]  # examples, their heads, rows, columns

    def queries(self, x: Tensor) -> Tensor:
        """Return the part [n, rows, ...] of [B H, Q, ...]."""
        return x[self.heads, self.rows]

    def keys(self, x: Tensor) -> Tensor:
        """Return the part [n, columns, ...] of [B H, K, ...]."""
        return x[self.heads, self.columns]


class Pairs(ABC):
    """The part of the computation that depends on the score: logits, and gradients derived from theirs."""

    taller: ClassVar[int] = 1
    """How many times as many queries as usual a block has."""

    def __init__(self, query: Tensor, key: Tensor) -> None:
        self.query, self.key = query, key  # as the score has projected them, [B H, Q, A] and [B H, K, A]

    @cached_property
    def d_query(self) -> Tensor:
        """The sums of gradients of queries, [B H, Q, A]."""
        return torch.zeros_like(self.query)

    @cached_property
    def d_key(self) -> Tensor:
        """The sums of gradients of keys, [B H, K, A]."""
        return torch.zeros_like(self.key)

    @abstractmethod
    def logits(self, block: Block, bias: Tensor | None) -> Tensor:
        """Return the logits [n, rows, columns] plus the bias, both in units of ln 2; the caller may overwrite them."""

    @abstractmethod
    def upper_bound(self, block: Block) -> Tensor:
        """Return an upper bound on the logits of a block without the bias, in units of ln 2."""

    @abstractmethod
    def backward(self, block: Block, gradient: Tensor) -> None:
        """Accumulate the gradients of queries, keys and weights from those of the logits, [n, rows, columns]."""

    @abstractmethod
    def gradients(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients of queries [B H, Q, A], keys [B H, K, A] and, if there are any, weights [H, A]."""


scores: dict[str, Callable[..., Pairs]] = {}
"""The score of each backend by name, called with queries, keys and weights (or None) in fp32 or float64, and the scale."""


class Call:
    """The inputs of both passes: queries (reversed), keys and values with the same number of heads, in fp32 or float64."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, weight: Tensor | None, bias: Tensor | None, allowed: Tensor | None,
        examples: Tensor | None, by_offset: bool, causal: bool, window: int, scale: float, dropout: float, numbers: list[int], score: str,
    ) -> None:  # fmt: skip
        self.dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        groups = query.shape[1] // key.shape[1]
        key, value = (x.to(self.dtype) if groups == 1 else x.to(self.dtype).repeat_interleave(groups, 1) for x in (key, value))
        key, self.value = key.flatten(0, 1), value.flatten(0, 1)
        weight = None if weight is None else weight.to(self.dtype)
        self.pairs = scores[score](self.reversed(query), key, weight, scale)
        self.shape = (*query.shape[:3], key.shape[1])  # B, H, Q, K
        self.stretches = None if allowed is None or allowed.dtype == torch.bool else allowed.expand(query.shape[0], -1)
        allowed = allowed if self.stretches is None else None
        self.bias, self.allowed = (x if x is None else x.reshape(*[1] * (4 - x.dim()), *x.shape) for x in (bias, allowed))
        self.line = self.in_bits(self.bias[..., 0, :]) if by_offset and self.bias is not None else None  # [B or 1, H, Q + K - 1]
        # on other devices, reading a number would force a synchronisation
        self.has_far_keys = self.line is not None and self.line.is_cpu and bool(self.line.amax() - self.line.amin() > -LEAST[self.dtype])
        self.lowest = 1 - window if window else 1 - self.shape[2]
        self.highest = 0 if causal else window - 1 if window else self.shape[3] - 1
        self.examples, self.dropout, self.numbers = examples, dropout, numbers
        self.wide = self.value.new_empty(0)

    def reversed(self, x: Tensor) -> Tensor:
        """Return [B, H, Q, E] as [B H, Q, E] with the queries in reverse order."""
        return x.to(self.dtype).flatten(0, 1).flip(1)

    def in_bits(self, bias: Tensor) -> Tensor:
        """Return a bias in units of ln 2, clamped to finite numbers."""
        return (bias.to(self.dtype) * LOG2E).clamp_(min=torch.finfo(self.dtype).min)

    def rows(self) -> Iterator[list[Block]]:
        """Yield, for a few queries at a time, the blocks of the keys that they can reach, nearest first."""
        batch, heads, queries, keys = self.shape
        size, width, pairs = ON_GPU if self.value.is_cuda else (ROWS, COLUMNS, PAIRS)
        size *= self.pairs.taller
        heads_per_block = max(1, pairs * self.pairs.taller // (min(queries, size) * min(keys, width)))
        examples = max(1, heads_per_block // heads)
        for b, h, start in itertools.product(range(0, batch, examples), range(0, heads, heads_per_block), range(0, queries, size)):
            bs, hs, stop = min(examples, batch - b), min(heads_per_block, heads - h), min(start + size, queries)
            first, last = max(0, queries - stop + self.lowest), min(keys, queries - start + self.highest)
            part = slice(b * heads + h, (b + bs - 1) * heads + h + hs), slice(start, stop)
            ends = [(c, min(c + width, last)) for c in range(first, last, width)]
            ends.sort(key=lambda end: abs(sum(end) - (2 * queries - start - stop)))  # twice the distance between the centres
            blocks = [Block(*part, slice(*end), (bs, hs, stop - start, end[1] - end[0])) for end in ends]
            if blocks := [block for block in blocks if not self.is_apart(block)]:
                yield blocks

    def is_zero(self, block: Block, sums: Tensor) -> bool:
        """Return whether all weights of a block are zero because its keys are too far away.

        `sums` are the binary logarithms, [n, rows, 1], of the divisors of each query's weights, or lower bounds on them.
        """
        if not self.has_far_keys or self.line is None:
            return False
        bound = self.pairs.upper_bound(block) + self.offsets(self.line, block).amax()
        return bool(bound - sums.amin() < LEAST[self.dtype])

    def powers(self, exponents: Tensor) -> Tensor:
        """Overwrite exponents with powers of 2; for distant keys, zeros replace denormal numbers, which are many times slower."""
        if self.has_far_keys:
            torch.threshold_(exponents, math.log2(torch.finfo(self.dtype).tiny), -math.inf)
        return exponents.exp2_()

    def logits(self, block: Block) -> Tensor:
        """Return the logits of a block in units of ln 2, -inf at masked keys."""
        bias = None
        if self.line is not None:
            bias = self.square(self.offsets(self.line, block), block)
        elif self.bias is not None:
            bias = self.in_bits(self.part(self.bias, block).flip(-2))
        found = self.pairs.logits(block, None if bias is None else bias.expand(block.shape).flatten(0, 1))
        first = self.first_offset(block)
        last = first + block.shape[2] + block.shape[3] - 2
        if first < self.lowest or last > self.highest:
            offsets = torch.arange(first, last + 1, device=found.device)
            found.masked_fill_(self.square((offsets < self.lowest) | (offsets > self.highest), block), float("-inf"))
        if self.allowed is not None:
            found.view(block.shape).masked_fill_(~self.part(self.allowed, block).flip(-2), float("-inf"))
        if self.stretches is not None:
            found.view(block.shape).masked_fill_(~document(*self.stretches_of(self.stretches, block)), float("-inf"))
        return found

    def stretches_of(self, stretches: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """Return the numbers of a block's queries, [b, rows], and keys, [b, columns]."""
        batch, queries = block.heads.start // self.shape[1], self.shape[2]
        stretches = stretches[batch : batch + block.shape[0]]
        return stretches[:, queries - block.rows.stop : queries - block.rows.start].flip(1), stretches[:, block.columns]

    def is_apart(self, block: Block) -> bool:
        """Return whether no query of a block has a key with its number there; where the tensors are not on a CPU, do not find out."""
        if self.stretches is None or not self.stretches.is_cpu:
            return False
        (lowest, highest), (first, last) = (x.aminmax(dim=1) for x in self.stretches_of(self.stretches, block))
        return bool(((highest < first) | (last < lowest)).all())

    def first_offset(self, block: Block) -> int:
        """Return the offset of the first key from the first reversed query, the block's last."""
        first: int = block.columns.start - (self.shape[2] - 1 - block.rows.start)
        return first

    def offsets(self, line: Tensor, block: Block) -> Tensor:
        """Return a block's part, [b or 1, h, rows + columns - 1], of the numbers of all offsets, [B or 1, H, Q + K - 1]."""
        first, (examples, heads, rows, columns) = self.first_offset(block) + self.shape[2] - 1, block.shape
        batch, head = divmod(block.heads.start, self.shape[1])
        line = line if line.shape[0] == 1 else line[batch : batch + examples]
        return line[:, head : head + heads, first : first + rows + columns - 1]

    def square(self, line: Tensor, block: Block) -> Tensor:
        """Return a view [..., rows, columns] of the numbers for a block's offsets."""
        return line.unfold(-1, block.shape[3], 1)

    def wide_product(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x y, [n, rows, columns], as part of a tensor in which `rows` zeros follow each row."""
        n, rows, columns = x.shape
        if self.wide.shape != (n, rows, rows + columns):
            self.wide = x.new_zeros(n, rows, rows + columns)
        return torch.mul(x, y, out=self.wide[..., :columns])

    def diagonals(self, block: Block) -> Tensor:
        """Return the sums of the last `wide_product` for each offset, [b, h, rows + columns - 1]: the gradient of `square`."""
        n, rows, width = self.wide.shape
        shifted = self.wide.as_strided((n, rows, width - 1), (rows * width, width - 1, 1))  # each row starts one number earlier
        return shifted.sum(1).view(*block.shape[:2], -1)

    def part(self, x: Tensor, block: Block) -> Tensor:
        """Return a view of a block's part of a tensor that broadcasts to [B, H, Q, K], with rows in their original order."""
        examples, heads, _, _ = block.shape
        batch, head = divmod(block.heads.start, self.shape[1])
        rows = slice(self.shape[2] - block.rows.stop, self.shape[2] - block.rows.start)
        parts = (slice(batch, batch + examples), slice(head, head + heads), rows, block.columns)
        return x[tuple(part if size > 1 else slice(None) for part, size in zip(parts, x.shape, strict=True))]

    def drop(self, weights: Tensor, block: Block) -> Tensor:
        """Drop the weights of a block that `reference` would drop, and scale the others."""
        if self.examples is None:
            return weights
        first_head, site, first_query = self.numbers
        examples, heads, _, columns = block.shape
        batch, head = divmod(block.heads.start, self.shape[1])
        queries = self.shape[2] - 1 - torch.arange(block.rows.start, block.rows.stop, device=weights.device)
        numbers = torch.arange(head, head + heads, device=weights.device)[:, None] + first_head + (first_query + queries) * MOST_HEADS
        keys = self.examples[batch : batch + examples]
        dropped = is_dropped(keys, self.dropout, site=site, rows=numbers, columns=columns, first=block.columns.start)
        return weights.masked_fill(dropped.flatten(0, 1), 0.0).mul_(kept_scale(self.dropout))
