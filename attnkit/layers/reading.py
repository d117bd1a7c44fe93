"""What the layers of a stack read: positions, which layers of equal widths share, and windows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnkit.attention import FiniteBias
from attnkit.layers.compatibility import mixer_class, reads_position
from attnkit.layers.config import LayerConfig, TransformerConfig
from attnkit.position import Position, QueryBias, Rotation
from attnkit.registry import PositionSpec

Place = tuple[PositionSpec, int | None, int | None]  # a position encoding, the width of a head, the number of heads
Kind = tuple[int | None, int | None]  # which place, and which window, a layer reads


def what_layers_read(stack: TransformerConfig, layers: Sequence[LayerConfig]) -> tuple[list[int], list[Kind], list[Place]]:
    """Return what each layer reads: the index of its kind; the kinds; and the places, which layers of equal widths share if they may.

    The first place is that of the stack.
    """
    places: list[Place] = [(stack.position, stack.head_width, stack.num_heads)]
    kinds: list[Kind] = []
    kind_of = []
    taken: set[int] = set()
    for layer in layers:
        place, reads = (layer.position, layer.head_width, layer.num_heads), reads_position(layer)
        same = (i for i, other in enumerate(places) if other == place and (stack.shared_positions or i not in taken))
        chosen = next(same, len(places))
        if reads:
            places[chosen : chosen + 1] = [place]
            taken.add(chosen)
        kind = (chosen if reads else None, layer.window if mixer_class(layer).reads_masks else None)
        if kind not in kinds:
            kinds.append(kind)
        kind_of.append(kinds.index(kind))
    return kind_of, kinds, places


def embedding_at(position: Position, positions: Tensor, columns: Tensor) -> Tensor | None:
    """Return what is added at `positions` [1 or B, T]: a batch takes its rows from one table for all columns."""
    if positions.shape[0] == 1:
        return position.embedding(positions)
    table = position.embedding(columns)
    return None if table is None else table[0][positions]


def rotation_at(position: Position, positions: Tensor, columns: Tensor) -> Rotation | None:
    """Return the rotation at `positions` [1 or B, T], in the same way."""
    if positions.shape[0] == 1:
        return position.rotation(positions)
    table = position.rotation(columns)
    return None if table is None else table.at(positions)


def bias_between(position: Position, query_positions: Tensor, key_positions: Tensor) -> FiniteBias | QueryBias | None:
    """Return what positions [1 or B, Q] and [1 or B, K] add to the logits, or None."""
    if position.reads_queries:
        return QueryBias(position, query_positions, key_positions)
    bias = position.bias(query_positions, key_positions)
    return None if bias is None else FiniteBias(bias)


def extended(old: Tensor | None, new: Tensor | None, batch: int, past: int, length: int, device: torch.device) -> Tensor:
    """Return the key mask of past and present tokens, [B, past + T]."""
    old = torch.ones(batch, past, dtype=torch.bool, device=device) if old is None else old
    new = torch.ones(batch, length, dtype=torch.bool, device=device) if new is None else new
    return torch.cat([old, new], 1)
