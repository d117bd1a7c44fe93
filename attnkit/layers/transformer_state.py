"""The state of a decoder's layers between tokens."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.layers.beams import Beams
from attnkit.mixer.key_values import KeyValues
from attnkit.state import State


@dataclass(frozen=True)
class TransformerState(State):
    """The state of a decoder after the tokens so far.

    Attributes:
        positions: [B, K].
        key_mask: [B, K] bool, or None if all tokens are real.
        layers: The state of the mixer at each depth; empty before the first token.
        memory: The memory of each layer with distinct parameters; empty without a memory.
        memory_mask: [B, S] bool, or None.
        memory_positions: [B, S], or None without memory.
        beams: Hypotheses that share `layers` and `memory`, or None. `positions` covers all their tokens; `key_mask` ends before them.
        next: [B] int64, the column of the next token in caches with room (`with_room`), the same in all rows; `positions` and, without
            beams, `key_mask` then cover all columns of the caches. None if the caches have no room.
    """

    positions: Tensor
    key_mask: Tensor | None = None
    layers: tuple[State | None, ...] = ()
    memory: tuple[State, ...] = ()
    memory_mask: Tensor | None = None
    memory_positions: Tensor | None = None
    beams: Beams | None = None
    next: Tensor | None = None

    @property
    def columns(self) -> int:
        """The number of tokens that a row or hypothesis has read, including padding."""
        return self.positions.shape[1] if self.beams is None else self.beams.length

    def select(self, index: Tensor) -> "TransformerState":
        """Return the state of the rows `index` [N] int64; caches with room then share one `next` again."""
        chosen = super().select(index)
        if chosen.next is None:
            return chosen
        return replace(chosen, layers=tuple(None if layer is None else layer.with_slots(0, chosen.next) for layer in chosen.layers))

    def branch(self, rows: Tensor) -> "TransformerState":
        """Return the state of hypotheses that continue `rows` [B, N]; they share caches if all layers restrict attention by masks."""
        if self.beams is not None:
            return replace(self, beams=self.beams.following(rows % rows.shape[1]))
        shares = self.next is None and self.layers != ()
        if not shares or not all(layer is None or (type(layer) is KeyValues and layer.is_unordered) for layer in self.layers):
            return super().select(rows.flatten())
        real = torch.ones_like(self.positions, dtype=torch.bool) if self.key_mask is None else self.key_mask
        return replace(self, beams=Beams.of(real, rows.shape[1]))

    def with_room(self, count: int) -> "TransformerState":
        """Return the state with room for `count` more tokens in the caches, of each hypothesis if there are beams."""
        (batch, length), device = self.positions.shape, self.positions.device
        beams, index = self.beams, torch.full((batch,), length, device=device)
        added = torch.arange(length, length + count, device=device).expand(batch, -1)
        if beams is not None:
            beams, count = beams.with_room(count), count * beams.read.shape[1]
            added = self.positions.new_zeros(batch, count)  # each step writes the positions of its tokens
        return replace(
            self,
            positions=torch.cat([self.positions, added], 1),
            key_mask=self.key_mask if self.key_mask is None or beams is not None else F.pad(self.key_mask, (0, count), value=True),
            layers=tuple(None if layer is None else layer.with_slots(count, index) for layer in self.layers),
            beams=beams,
            next=index,
        )
