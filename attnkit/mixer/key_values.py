"""The attention cache: the keys and values of all tokens so far, or of a window of them."""

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.mixer.base import Tokens
from attnkit.position import QueryBias
from attnkit.state import Growing, Slots, State


@dataclass(frozen=True)
class KeyValues(State):
    """The keys and values of tokens, projected once. Without a window, every token read has one of each.

    Attributes:
        keys: [B, Hkv, K, E], after the score's own projection and the rotation.
        values: [B, Hkv, K, Dv].
        log_gates: [B, H, K, 1], the logarithms of forget gates; None without them.
        columns: [B, K] int64, the indices of these tokens among all tokens read, ascending; None if all are held.
        real: [B, K] bool, True = real token, set only with `columns`; None if all are.
        length: Number of tokens read, set only with `columns`.
    """

    keys: Growing
    values: Growing
    log_gates: Growing | None = None
    _: KW_ONLY
    columns: Tensor | None = None
    real: Tensor | None = None
    length: int = 0

    @classmethod
    def of(cls, *vectors: Tensor) -> Self:
        """Return the keys, the values and, if there are any, the logarithms of the gates of the first tokens."""
        return cls(*map(Growing, vectors))

    @property
    def key(self) -> Tensor:
        """The keys [B, Hkv, K, E]."""
        return self.keys.tensor

    @property
    def value(self) -> Tensor:
        """The values [B, Hkv, K, Dv]."""
        return self.values.tensor

    @property
    def vectors(self) -> tuple[Growing, ...]:
        """All vectors of tokens: keys, values and, if there are any, the logarithms of gates."""
        return (self.keys, self.values) if self.log_gates is None else (self.keys, self.values, self.log_gates)

    @property
    def is_unordered(self) -> bool:
        """Whether the order of the tokens does not matter, so that several hypotheses can share one cache."""
        return self.columns is None and self.log_gates is None

    def numbered(self, real: Tensor | None) -> "KeyValues":
        """Return a copy whose `columns` number its tokens from 0; `real` is as in `Tokens`."""
        batch, length = self.key.shape[0], self.key.shape[-2]
        columns = torch.arange(length, device=self.key.device).expand(batch, -1)
        return replace(self, columns=columns, real=real, length=length)

    def append(self, *vectors: Tensor, real: Tensor | None = None) -> "KeyValues":
        """Return these vectors followed by new ones, given as to `of`; `real` is that of `Tokens`."""
        longer = KeyValues(*(old.append(new) for old, new in zip(self.vectors, vectors, strict=True)))
        if self.columns is None:
            return longer
        key = vectors[0]
        length = self.length + key.shape[-2]
        added = torch.arange(self.length, length, device=key.device).expand(len(key), -1)
        if self.real is not None or real is not None:
            old = torch.ones_like(self.columns, dtype=torch.bool) if self.real is None else self.real
            real = torch.cat([old, torch.ones_like(added, dtype=torch.bool) if real is None else real], 1)
        return replace(longer, columns=torch.cat([self.columns, added], 1), real=real, length=length)

    def with_slots(self, count: int, index: Tensor) -> Self:
        """Return a copy with room for `count` more tokens, the next one at `index` [B]. Tokens that have left the window keep slots."""
        if self.columns is None:
            wider = [F.pad(x.tensor, (0, 0, 0, count)) for x in self.vectors]
        else:
            wider = [_placed(x.tensor, self.columns, self.length + count) for x in self.vectors]
        return type(self)(*(Slots(x, index=index) for x in wider))

    def last(self, count: int) -> "KeyValues":
        """Return the last `count` real tokens of each row, or all if there are fewer; padding fills up shorter rows.

        With slots, all tokens stay where they are, and masks restrict attention.
        """
        if isinstance(self.keys, Slots):
            return self
        assert self.columns is not None
        held = self.columns.shape[1]
        if held <= count:
            return self
        if self.real is None:
            kept = KeyValues(*(x.last(count) for x in self.vectors))
            return replace(kept, columns=self.columns[:, held - count :], length=self.length)
        order = torch.arange(held, device=self.real.device) + held * self.real  # real tokens after all padding
        chosen = order.topk(count).indices.sort().values  # [B, count]
        kept = KeyValues(*(Growing(_tokens(x.tensor, chosen)) for x in self.vectors))
        return replace(kept, columns=self.columns.gather(1, chosen), real=self.real.gather(1, chosen), length=self.length)

    def newest_values(self, count: int) -> tuple[Tensor, "KeyValues"]:
        """Return the values of the last `count` tokens, [B, Hkv, count, Dv], and this state."""
        return self.values.last(count).tensor, self

    def restrict(self, tokens: Tokens) -> Tokens:
        """Return `tokens` with the mask and the bias reduced from all tokens to the columns that are held."""
        if self.columns is None or self.columns.shape[1] == self.length:
            return tokens
        queries = self.length if tokens.mask is not None and tokens.mask.causal else 1
        held = partial(_keys, columns=self.columns)
        tokens = tokens.changed(held, queries=queries, keys=self.length, device=self.key.device)
        if isinstance(bias := tokens.bias, QueryBias):
            positions = bias.key_positions.expand(len(self.columns), -1).gather(1, self.columns)
            tokens = replace(tokens, bias=bias._replace(key_positions=positions))
        return tokens


def _placed(x: Tensor, columns: Tensor, count: int) -> Tensor:
    """Return [B, H, count, E] with the tokens of `x` [B, H, K, E] at `columns` [B, K], and zeros elsewhere."""
    empty = x.new_zeros(*x.shape[:2], count, x.shape[3])
    return empty.scatter(-2, columns[:, None, :, None].expand_as(x), x)


def _tokens(x: Tensor, columns: Tensor) -> Tensor:
    """Return the tokens `columns` [B, N] of each row of `x` [B, H, K, E]."""
    return x.gather(-2, columns[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def _keys(x: Tensor, columns: Tensor) -> Tensor:
    """Return the keys `columns` [B, N] of each row of `x`, which broadcasts to [B, H, Q, K]."""
    if x.shape[-1] == 1:
        return x
    x = x[(None,) * (4 - x.dim())]
    x = x.expand(len(columns), *x.shape[1:])
    return x.gather(-1, columns[:, None, None, :].expand(-1, *x.shape[1:3], -1))
