"""The inputs that the layers of a stack share: positions (shared by layers of equal widths), masks and windows."""

from collections.abc import Iterable

import torch
from torch import Tensor

from attnkit import masks
from attnkit.attention import FiniteBias, LazyBias
from attnkit.layers.config import LayerConfig
from attnkit.layers.effects import mixer_classes, reads_position
from attnkit.masks import Mask
from attnkit.position import Position, QueryBias, Rotation
from attnkit.registry import PositionSpec
from attnkit.transforms import observed, traced, transformed

LONG = 1024
"""The number of tokens from which windows and biases stay symbolic; for fewer, one tensor for all layers is cheaper."""

Place = tuple[PositionSpec, int | None, int | None]  # a position encoding, the width of a head, the number of heads
Kind = tuple[int | None, int | None, bool]  # the index of a layer's place, its window, and whether it reads a mask


def readings(stack: LayerConfig, layers: Iterable[LayerConfig], *, shared: bool) -> tuple[list[Place], list[Kind], list[int]]:
    """Return the position encodings to build, the stack's first; the kinds of layers, by their inputs; and the kind of each layer.

    If `shared`, layers with equal positions of equal widths share them. If every layer sets its own widths, the stack's position encoding
    has those of the first layer that reads it.
    """
    layers = list(layers)
    read: list[Place] = [(layer.position, layer.head_width, layer.num_heads) for layer in layers if reads_position(layer)]
    whole: Place = (stack.position, stack.head_width, stack.num_heads)
    places: list[Place] = [whole if whole in read else next((place for place in read if place[0] == stack.position), whole)]
    kinds: list[Kind] = []
    kind_of: list[int] = []
    taken: set[int] = set()
    for layer in layers:
        chosen = None
        if reads_position(layer):
            place = (layer.position, layer.head_width, layer.num_heads)
            equal = (i for i, other in enumerate(places) if other == place and (shared or i not in taken))
            chosen = next(equal, len(places))
            places[chosen : chosen + 1] = [place]
            taken.add(chosen)
        reads_masks = any(kind.reads_masks for kind in mixer_classes(layer.mixer))
        kind = (chosen, layer.window if reads_masks else None, reads_masks)
        if kind not in kinds:
            kinds.append(kind)
        kind_of.append(kinds.index(kind))
    return places, kinds, kind_of


def embedding_at(position: Position, positions: Tensor, columns: Tensor) -> Tensor | None:
    """Return the embedding to add at `positions` [1 or B, T]; all rows of a batch are read from one table over all columns."""
    if positions.shape[0] == 1:
        return position.embedding(positions)
    table = position.embedding(columns[:, : position.max_length])
    return None if table is None else table[0][positions]


def rotation_at(position: Position, positions: Tensor, columns: Tensor) -> Rotation | None:
    """Return the rotation at `positions` [1 or B, T], computed like `embedding_at`."""
    if positions.shape[0] == 1:
        return position.rotation(positions)
    table = position.rotation(columns[:, : position.max_length])
    return None if table is None else table.at(positions)


def bias_between(
    position: Position, query_positions: Tensor, key_positions: Tensor, *, is_padded: bool = True
) -> FiniteBias | LazyBias | QueryBias | None:
    """Return the bias of positions [1 or B, Q] and [1 or B, K], or None; for long sequences, as a function of tiles."""
    if position.reads_queries:
        return QueryBias(position, query_positions, key_positions)
    if type(position).bias is Position.bias:
        return None
    bias = position.bias
    if min(query_positions.shape[1], key_positions.shape[1]) >= LONG:
        by_offset = position.by_offset and not is_padded and query_positions.shape[1] == key_positions.shape[1]
        return LazyBias(bias, query_positions, key_positions, by_offset)  # type: ignore[arg-type]  # it has one
    values = bias(query_positions, key_positions)
    return None if values is None else FiniteBias(values)


def stretches_in(documents: Tensor | None, key_mask: Tensor | None) -> Tensor | None:
    """Return `masks.stretches` of documents [B, T] and a key mask [B, T] for rows whose masks stay symbolic, or None.

    They do so in long rows on a CPU: elsewhere it has not been measured, and whether padding lies between tokens is a number to read, which
    tracing, torch.func and the counting of FLOPs do not allow.
    """
    given = key_mask if documents is None else documents
    if given is None or not given.is_cpu or torch.compiler.is_compiling() or traced() or transformed() or observed():
        return None
    return masks.stretches(documents, key_mask) if given.shape[1] >= LONG else None


def mask_between(
    query_positions: Tensor,
    key_positions: Tensor,
    *,
    key_mask: Tensor | None,
    restriction: Tensor | None,
    stretches: Tensor | None,
    window: int | None,
    causal: bool,
) -> Mask | None:
    """Return which keys [1 or B, K] the queries [1 or B, Q] may read, or None if all.

    `key_mask` [B, K] is True at real tokens; `restriction` broadcasts to [B, H, Q, K]; `stretches` [B, K] replace both in long rows, if
    given; a window reaches positions less than `window` away. In long rows, windows and stretches stay symbolic: padding then reads
    padding, where a matrix lets it read tokens.
    """
    queries, keys = query_positions.shape[1], key_positions.shape[1]
    is_symbolic = stretches is not None or (window is not None and key_mask is None and restriction is None)
    if is_symbolic and LONG <= queries == keys:
        return Mask(causal=causal, window=window, stretches=stretches)
    near = None if window is None else masks.sliding_window(query_positions, key_positions, window)
    other = masks.combine(None if key_mask is None else masks.key(key_mask), near, restriction)
    if not causal or (queries == 1 and key_mask is None):  # a single query, the newest token, attends to all keys
        return Mask.of(other)
    if other is None and queries == keys:
        return Mask(causal=True)
    return Mask.of(masks.combine(masks.causal(query_positions, key_positions), other))


def extended(old: Tensor | None, new: Tensor | None, batch: int, past: int, length: int, device: torch.device) -> Tensor:
    """Return the key mask of past and current tokens, [B, past + T]."""
    old = torch.ones(batch, past, dtype=torch.bool, device=device) if old is None else old
    new = torch.ones(batch, length, dtype=torch.bool, device=device) if new is None else new
    return torch.cat([old, new], 1)
