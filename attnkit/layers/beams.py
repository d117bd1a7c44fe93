"""Hypotheses of a beam search that share one cache; each records which of its tokens it has read."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.masks import Mask
from attnkit.state import State


@dataclass(frozen=True)
class Beams(State):
    """N hypotheses of each row. The caches of a row hold the tokens of all of them, so a search reorders only this object."""

    read: Tensor  # [B, N, K] bool, True = the hypothesis has read this token of the cache
    length: int  # number of tokens that each has read, including padding; in caches with room, the number that fits

    @classmethod
    def of(cls, real: Tensor, count: int) -> Self:
        """Return `count` hypotheses of each row that have read the same tokens, `real` [B, K] bool."""
        return cls(real[:, None].expand(-1, count, -1), real.shape[1])

    def following(self, parents: Tensor) -> "Beams":
        """Return hypotheses that continue the hypotheses `parents` [B, N] of their rows."""
        return Beams(self.read.gather(1, parents[..., None].expand_as(self.read)), self.length)

    def extended(self) -> "Beams":
        """Return the hypotheses after one more token each; the cache holds all of these tokens."""
        own = torch.eye(self.read.shape[1], dtype=torch.bool, device=self.read.device)
        return Beams(torch.cat([self.read, own.expand(len(self.read), -1, -1)], -1), self.length + 1)

    def written(self, columns: Tensor) -> "Beams":
        """Return the hypotheses after one more token each, at the `columns` [N] of caches with room."""
        own = torch.eye(len(columns), dtype=torch.bool, device=columns.device)
        return Beams(self.read.index_copy(-1, columns, own.expand(len(self.read), -1, -1)), self.length)

    def with_room(self, count: int) -> "Beams":
        """Return the hypotheses with room for `count` more tokens each."""
        return Beams(F.pad(self.read, (0, count * self.read.shape[1])), self.length + count)

    @property
    def mask(self) -> Mask:
        """The mask [B, 1, N, K] of the hypotheses' newest tokens."""
        return Mask(allowed=self.read[:, None])
