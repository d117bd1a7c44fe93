# https://arxiv.org/abs/1706.03762
"""N Transformer layers with positions: the body of every Transformer stack."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from attnkit import masks
from attnkit.attention import FiniteBias
from attnkit.dropout import Dropout
from attnkit.layers.legality import check_legal
from attnkit.layers.multi_head import KeyValues
from attnkit.layers.transformer_layer import TransformerLayer
from attnkit.masks import Mask
from attnkit.position import Position, Rotation
from attnkit.registry import (
    AttentionSpec,
    BackendName,
    ConfigurationError,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
    ResidualSpec,
    norms,
    positions,
)
from attnkit.state import State


@dataclass(frozen=True)
class TransformerState(State):
    """What a decoder remembers of the tokens so far.

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
        d_model: Width of the stream D.
        num_layers: Layers N.
        num_heads: Query heads.
        causal: Whether a token attends only itself and earlier ones.
        num_kv_heads: Key and value heads (default: as many).
        head_dim: Width of a head (default: d_model / num_heads).
        attention: The score of self-attention.
        cross_attention: The score of cross-attention, or None for layers without memory.
        position: Positions, shared by all layers.
        cross_position: Positions inside cross-attention, of a token against the memory's: `none`, or a kind that rotates or adds a bias.
        norm: The norm.
        feed_forward: The position-wise part.
        residual: How each sublayer joins the stream.
        dropout: Probability of dropping an element of the embeddings and of each sublayer's output.
        attention_dropout: Probability of dropping an attention weight.
        bias: Whether the attention projections have biases.
        window: Self-attention reaches fewer than `window` tokens away (default: all).
        embedding_norm: Whether the sum of embeddings and positions is normalised, before the dropout (BERT).
        final_norm: Whether a norm ends the stack (default: if the residual kind needs one).
        backend: What computes the attention; changes no result.

    Raises:
        ConfigurationError: A position kind is not legal with its attention kind, or a spec is wrong.
        ValueError: A width, count or probability is out of range.

    Example:
        >>> body = Transformer(d_model=8, num_layers=2, num_heads=2, causal=True)
        >>> y, state = body(torch.randn(1, 3, 8))
        >>> y_next, state = body(torch.randn(1, 1, 8), state=state)
        >>> state.positions
        tensor([[0, 1, 2, 3]])
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_layers: int,
        num_heads: int,
        causal: bool,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        attention: AttentionSpec = "scaled_dot_product",
        cross_attention: AttentionSpec | None = None,
        position: PositionSpec = "sinusoidal",
        cross_position: PositionSpec = "none",
        norm: NormSpec = "layer_norm",
        feed_forward: FeedForwardSpec = "mlp",
        residual: ResidualSpec = "pre_norm",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        bias: bool = True,
        window: int | None = None,
        embedding_norm: bool = False,
        final_norm: bool | None = None,
        backend: BackendName = "auto",
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers must be positive, but is {num_layers}")
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1 (the token itself), but is {window}")
        check_legal(attention=attention, position=position)
        if cross_attention is not None:
            check_legal(attention=cross_attention, position=cross_position, is_cross=True)
        self.causal, self.window = causal, window
        layers = [
            TransformerLayer(
                d_model=d_model,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                attention=attention,
                cross_attention=cross_attention,
                norm=norm,
                feed_forward=feed_forward,
                residual=residual,
                dropout=dropout,
                attention_dropout=attention_dropout,
                bias=bias,
                backend=backend,
            )
            for _ in range(num_layers)
        ]
        first = layers[0]
        self.layers = nn.ModuleList(layers)
        self.position: Position = positions.build(
            position, d_model=d_model, head_dim=first.self_attention.head_dim, num_heads=num_heads, bidirectional=not causal
        )
        self.cross_position: Position = positions.build(
            cross_position, d_model=d_model, head_dim=first.self_attention.head_dim, num_heads=num_heads, bidirectional=True
        )
        self.embedding_norm: nn.Module | None = norms.build(norm, d_model=d_model) if embedding_norm else None
        self.dropout = Dropout(dropout)
        final_norm = first.feed_forward_residual.needs_final_norm if final_norm is None else final_norm
        self.final_norm: nn.Module | None = norms.build(norm, d_model=d_model) if final_norm else None

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
            ConfigurationError: The sequence is longer than the positions allow.
        """
        batch, length = x.shape[:2]
        state = TransformerState(torch.empty(batch, 0, dtype=torch.long, device=x.device)) if state is None else state
        past = state.positions.shape[1]
        if self.position.max_length is not None and past + length > self.position.max_length:
            raise ConfigurationError(
                f"a sequence of {past + length} tokens does not fit into positions that end at {self.position.max_length}; "
                f"shorten it, raise the position's max_length, or use positions without an end (sinusoidal, rotary, alibi, relative)"
            )
        plain = key_mask is None and state.key_mask is None  # no padding: positions are columns, the same in every row
        if key_mask is not None:
            masks.check_bool(key_mask, "key_mask", x.shape[:2])
        seen = None if plain else _extend(state.key_mask, key_mask, batch, past, length, x.device)
        columns = torch.arange(past + length, device=x.device)[None]  # [1, K]
        every = columns if seen is None else masks.positions(seen)  # [1 or B, K]
        here = every[:, past:]
        added = _embedding(self.position, here, columns)
        x = x if added is None else x + added.to(x.dtype)
        x = self.dropout(x if self.embedding_norm is None else self.embedding_norm(x))
        rotation, bias = _rotation(self.position, here, columns), _bias(self.position, here, every)
        mask = self._mask(here, every, seen, attn_mask)
        memory_mask = None if state.memory_mask is None else Mask.of(masks.key(state.memory_mask))
        memory_bias = None if state.memory_positions is None else _bias(self.cross_position, here, state.memory_positions)
        memory_rotation = _rotation(self.cross_position, here, columns)
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
        return x, TransformerState(every.expand(batch, -1), seen, tuple(caches), state.memory, state.memory_mask, state.memory_positions)

    def start(self, memory: Tensor, memory_mask: Tensor | None = None) -> TransformerState:
        """Return the state before the first token, with the memory [B, S, D] projected for every layer."""
        batch, length = memory.shape[:2]
        if memory_mask is not None:
            masks.check_bool(memory_mask, "memory_mask", memory.shape[:2])
        columns = torch.arange(length, device=memory.device)[None]  # [1, S]
        there = columns if memory_mask is None else masks.positions(memory_mask)  # [1 or B, S]
        rotation = _rotation(self.cross_position, there, columns)
        return TransformerState(
            positions=torch.empty(batch, 0, dtype=torch.long, device=memory.device),
            memory=tuple(cast(TransformerLayer, layer).project_memory(memory, rotation=rotation) for layer in self.layers),
            memory_mask=memory_mask,
            memory_positions=there.expand(batch, -1),
        )

    def _mask(self, here: Tensor, every: Tensor, seen: Tensor | None, attn_mask: Tensor | None) -> Mask | None:
        window = None if self.window is None else masks.sliding_window(here, every, self.window)
        other = masks.combine(None if seen is None else masks.key(seen), window, attn_mask)
        if not self.causal or (here.shape[1] == 1 and seen is None):  # a single newest query sees all keys
            return Mask.of(other)
        if other is None and here.shape[1] == every.shape[1]:
            return Mask(causal=True)
        return Mask.of(masks.combine(masks.causal(here, every), other))


def _embedding(position: Position, positions: Tensor, columns: Tensor) -> Tensor | None:
    """Return what is added at `positions` [1 or B, T]: for a batch, rows of one table for all columns, not a table for each row."""
    if positions.shape[0] == 1:
        return position.embedding(positions)
    table = position.embedding(columns)
    return None if table is None else table[0][positions]


def _rotation(position: Position, positions: Tensor, columns: Tensor) -> Rotation | None:
    """Return the rotation at `positions` [1 or B, T], likewise."""
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
