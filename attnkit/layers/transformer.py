# https://arxiv.org/abs/1706.03762
"""N Transformer layers with positions: the core of every Transformer stack."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from attnkit import masks
from attnkit.attention import FiniteBias
from attnkit.dropout import Dropout
from attnkit.layers.compatibility import check_compatible
from attnkit.layers.config import TransformerConfig
from attnkit.layers.multi_head import KeyValues
from attnkit.layers.transformer_layer import TransformerLayer
from attnkit.masks import Mask
from attnkit.position import Position, Rotation
from attnkit.registry import AttentionSpec, ConfigurationError, PositionSpec, norms, positions
from attnkit.state import State


@dataclass(frozen=True)
class TransformerState(State):
    """The cache of a decoder, for the tokens so far.

    Attributes:
        positions: [B, K].
        key_mask: [B, K] bool, or None if all tokens are real.
        layers: Keys and values of each layer's self-attention; empty before the first token.
        memory: Keys and values of each layer's cross-attention; empty without memory.
        memory_mask: [B, S] bool, or None.
        memory_positions: [B, S], or None without memory.
    """

    positions: Tensor
    key_mask: Tensor | None = None
    layers: tuple[KeyValues, ...] = ()
    memory: tuple[KeyValues, ...] = ()
    memory_mask: Tensor | None = None
    memory_positions: Tensor | None = None


class Transformer(nn.Module):
    """Positions, dropout, layers, and a final norm where the residual kind leaves the stream without one.

    Args:
        config: The options.
        causal: Whether a token attends only itself and earlier ones.
        cross_attention: The score of cross-attention, or None for layers without memory.
        cross_position: Position encoding inside cross-attention: `none`, or a kind that rotates or adds a bias.

    Raises:
        ConfigurationError: A position encoding does not work with its score, or a spec is wrong.

    Example:
        >>> layers = Transformer(TransformerConfig(d_model=8, num_layers=2, num_heads=2), causal=True)
        >>> y, state = layers(torch.randn(1, 3, 8))
        >>> y_next, state = layers(torch.randn(1, 1, 8), state=state)
        >>> state.positions
        tensor([[0, 1, 2, 3]])
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        causal: bool,
        cross_attention: AttentionSpec | None = None,
        cross_position: PositionSpec = "none",
    ) -> None:
        super().__init__()
        check_compatible(attention=config.attention, position=config.position)
        if cross_attention is not None:
            check_compatible(attention=cross_attention, position=cross_position, is_cross=True)
        self.causal, self.window = causal, config.window
        layers = [TransformerLayer(config, cross_attention=cross_attention) for _ in range(config.num_layers)]
        self.layers = nn.ModuleList(layers)
        widths = {"d_model": config.d_model, "head_dim": layers[0].self_attention.head_dim, "num_heads": config.num_heads}
        self.position: Position = positions.build(config.position, **widths, bidirectional=not causal)
        self.cross_position: Position = positions.build(cross_position, **widths, bidirectional=True)
        self.embedding_norm: nn.Module | None = norms.build(config.norm, d_model=config.d_model) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)
        final_norm = layers[0].feed_forward_residual.needs_final_norm if config.final_norm is None else config.final_norm
        self.final_norm: nn.Module | None = norms.build(config.norm, d_model=config.d_model) if final_norm else None

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        state: TransformerState | None = None,
    ) -> tuple[Tensor, TransformerState]:
        """Run the layers over `x`, after the tokens that `state` remembers.

        Args:
            x: Embedded tokens [B, T, D].
            key_mask: [B, T] bool, True = real token (default: all).
            attn_mask: Further restriction of self-attention, bool, broadcasts to [B, H, T, K].
            state: From an earlier call, or from `start` (default: nothing before `x`, no memory).

        Returns:
            [B, T, D], and the state after `x`.

        Raises:
            ConfigurationError: The sequence is longer than the position encoding allows.
        """
        batch, length = x.shape[:2]
        state = TransformerState(torch.empty(batch, 0, dtype=torch.long, device=x.device)) if state is None else state
        past = state.positions.shape[1]
        if self.position.max_length is not None and past + length > self.position.max_length:
            raise ConfigurationError(
                f"a sequence of {past + length} tokens does not fit into positions that end at {self.position.max_length}; "
                f"shorten it, raise the position's max_length, or use positions of any length (sinusoidal, rotary, alibi, relative)"
            )
        if key_mask is not None:
            masks.check_bool(key_mask, "key_mask", x.shape[:2])
        if key_mask is not None or state.key_mask is not None:
            key_mask = _extend(state.key_mask, key_mask, batch, past, length, x.device)  # [B, K]
        columns = torch.arange(past + length, device=x.device)[None]  # [1, K]
        key_positions = columns if key_mask is None else masks.positions(key_mask)  # [1 or B, K]; without padding as the columns
        query_positions = key_positions[:, past:]
        added = _embedding(self.position, query_positions, columns)
        x = x if added is None else x + added.to(x.dtype)
        x = self.dropout(x if self.embedding_norm is None else self.embedding_norm(x))
        rotation, bias = _rotation(self.position, query_positions, columns), _bias(self.position, query_positions, key_positions)
        mask = self._mask(query_positions, key_positions, key_mask, attn_mask)
        memory_mask = None if state.memory_mask is None else Mask.of(masks.key(state.memory_mask))
        memory_bias = None if state.memory_positions is None else _bias(self.cross_position, query_positions, state.memory_positions)
        memory_rotation = _rotation(self.cross_position, query_positions, columns)
        caches = []
        for i, layer in enumerate(self.layers):
            x, cache = layer(
                x,
                mask=mask,
                attn_bias=bias,
                rotation=rotation,
                past=state.layers[i] if state.layers else None,
                memory=state.memory[i] if state.memory else None,
                memory_mask=memory_mask,
                memory_bias=memory_bias,
                memory_rotation=memory_rotation,
            )
            caches.append(cache)
        x = x if self.final_norm is None else self.final_norm(x)
        positions = key_positions.expand(batch, -1)
        return x, TransformerState(positions, key_mask, tuple(caches), state.memory, state.memory_mask, state.memory_positions)

    def start(self, memory: Tensor, memory_mask: Tensor | None = None) -> TransformerState:
        """Return the state before the first token, with the memory [B, S, D] projected for every layer."""
        batch, length = memory.shape[:2]
        if memory_mask is not None:
            masks.check_bool(memory_mask, "memory_mask", memory.shape[:2])
        columns = torch.arange(length, device=memory.device)[None]  # [1, S]
        memory_positions = columns if memory_mask is None else masks.positions(memory_mask)  # [1 or B, S]
        rotation = _rotation(self.cross_position, memory_positions, columns)
        return TransformerState(
            positions=torch.empty(batch, 0, dtype=torch.long, device=memory.device),
            memory=tuple(cast(TransformerLayer, layer).project_memory(memory, rotation=rotation) for layer in self.layers),
            memory_mask=memory_mask,
            memory_positions=memory_positions.expand(batch, -1),
        )

    def _mask(self, query_positions: Tensor, key_positions: Tensor, key_mask: Tensor | None, attn_mask: Tensor | None) -> Mask | None:
        window = None if self.window is None else masks.sliding_window(query_positions, key_positions, self.window)
        other = masks.combine(None if key_mask is None else masks.key(key_mask), window, attn_mask)
        queries, keys = query_positions.shape[1], key_positions.shape[1]
        if not self.causal or (queries == 1 and key_mask is None):  # a single query, the newest token, attends all keys
            return Mask.of(other)
        if other is None and queries == keys:
            return Mask(causal=True)
        return Mask.of(masks.combine(masks.causal(query_positions, key_positions), other))


def _embedding(position: Position, positions: Tensor, columns: Tensor) -> Tensor | None:
    """Return what is added at `positions` [1 or B, T]: a batch takes its rows from one table for all columns."""
    if positions.shape[0] == 1:
        return position.embedding(positions)
    table = position.embedding(columns)
    return None if table is None else table[0][positions]


def _rotation(position: Position, positions: Tensor, columns: Tensor) -> Rotation | None:
    """Return the rotation at `positions` [1 or B, T], in the same way."""
    if positions.shape[0] == 1:
        return position.rotation(positions)
    table = position.rotation(columns)
    return None if table is None else table.at(positions)


def _bias(position: Position, query_positions: Tensor, key_positions: Tensor) -> FiniteBias | None:
    bias = position.bias(query_positions, key_positions)
    return None if bias is None else FiniteBias(bias)


def _extend(old: Tensor | None, new: Tensor | None, batch: int, past: int, length: int, device: torch.device) -> Tensor:
    """Return the key mask of past and present tokens, [B, past + T]."""
    old = torch.ones(batch, past, dtype=torch.bool, device=device) if old is None else old
    new = torch.ones(batch, length, dtype=torch.bool, device=device) if new is None else new
    return torch.cat([old, new], 1)
