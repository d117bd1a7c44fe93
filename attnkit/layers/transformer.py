# https://arxiv.org/abs/1706.03762
"""Layers with positions: the core of all stacks except the recurrent ones."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import cast

import torch
from torch import Tensor, nn

from attnkit import draws, masks
from attnkit.dropout import Dropout
from attnkit.layers.beams import Beams
from attnkit.layers.compatibility import legal_layers
from attnkit.layers.config import LayerConfig, TransformerConfig
from attnkit.layers.effects import mixer_classes
from attnkit.layers.reading import bias_between, embedding_at, extended, mask_between, readings, rotation_at, stretches_in
from attnkit.layers.transformer_layer import TransformerLayer
from attnkit.layers.transformer_state import TransformerState
from attnkit.masks import Mask
from attnkit.mixer import Direction, Tokens, refuse_empty
from attnkit.mixer.value_residual import HasValues, mixes_values
from attnkit.position import Position
from attnkit.registry import AttentionSpec, ConfigurationError, MixerSpec, PositionSpec, layer_kinds, mixers, norms, positions
from attnkit.state import State


class Transformer(nn.Module):
    """Positions, dropout, layers, and a final norm if the residual kind needs one.

    Args:
        causal: Whether a token sees only itself and earlier tokens.
        cross_mixer: The mixer that reads a memory, or None for layers without memory.
        cross_attention: The score of `cross_mixer` (default: that of the stack).
        cross_position: The position encoding of the memory: `none`, or a kind that rotates or adds a bias.
        memory_depth: Number of layers in the stack whose output is the memory, or None without a memory.

    Attributes:
        layers: The layers with distinct parameters, in the order of their first occurrence in the stack.
        order: The index in `layers` of the layer at each depth.

    Raises:
        ConfigurationError: A mixer does not work in this direction, a position encoding does not work with a score, or a spec is wrong.

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
        cross_mixer: MixerSpec | None = None,
        cross_attention: AttentionSpec | None = None,
        cross_position: PositionSpec = "none",
        memory_depth: int | None = None,
    ) -> None:
        super().__init__()
        self.causal = causal
        direction: Direction = "causal" if causal else "bidirectional"
        legal = legal_layers(
            config, direction=direction, cross_mixer=cross_mixer, cross_attention=cross_attention, cross_position=cross_position
        )
        pattern, configs = legal.pattern, legal.entries
        stack = {field.name: getattr(config, field.name) for field in fields(LayerConfig)}
        stack |= {"depth": pattern.depth, "memory_depth": memory_depth, "direction": direction}
        if cross_mixer is not None:
            score = config.attention if cross_attention is None else cross_attention
            stack |= {"cross_mixer": cross_mixer, "cross_attention": score}
        self.layers = nn.ModuleList()
        self.order: list[int] = []
        own: list[LayerConfig] = []
        shared: dict[int, int] = {}
        for depth in range(pattern.depth):
            entry = pattern.entry_at(depth)
            if entry in shared:
                self.order.append(shared[entry])
                continue
            self.order.append(len(self.layers))
            own.append(configs[entry])
            self.layers.append(layer_kinds.build(pattern.entries[entry], **stack, layer=depth))
            if pattern.entries[entry]["share"]:
                shared[entry] = self.order[-1]
        self.streams = _streams([cast(TransformerLayer, layer) for layer in self.layers])
        kinds = [kind for layer in configs for kind in mixer_classes(layer.mixer)]
        self.unmaskable = sorted({mixers.name_of(kind) for kind in kinds if not kind.reads_masks})

        mixing = (mixes_values(mixers.resolve(configs[pattern.entry_at(i)].mixer)) for i in range(pattern.depth))
        self.first_value_at = next((depth for depth, mixes in enumerate(mixing) if mixes), None)
        places, self.kinds, self.kind_of = readings(config, own, shared=config.shared_positions)
        encodings = [
            positions.build(spec, d_model=config.d_model, head_dim=head_dim, num_heads=num_heads, bidirectional=not causal)
            for spec, head_dim, num_heads in places
        ]
        apart = [encoding for place, encoding in zip(places, encodings, strict=True) if places.count(place) > 1]
        if not config.shared_positions and not any(list(encoding.parameters()) for encoding in apart):
            raise ConfigurationError("shared_positions has no effect: no two layers have equal positions with parameters; remove it")
        self.position: Position = encodings[0]
        self.other_positions = nn.ModuleList(encodings[1:])
        self.skips = nn.Parameter(torch.empty(len(self.order) // 2)) if config.skips else None
        widths = [(layer.head_width, layer.num_heads) for layer in own]
        distinct = list(dict.fromkeys(widths))
        self.cross_kind_of = [distinct.index(width) for width in widths]
        across: list[Position] = [
            positions.build(cross_position, d_model=config.d_model, head_dim=head_dim, num_heads=num_heads, bidirectional=True)
            for head_dim, num_heads in distinct
        ]
        self.cross_position, self.other_cross_positions = across[0], nn.ModuleList(across[1:])
        self.embedding_norm: nn.Module | None = norms.build(config.norm, d_model=config.d_model) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)
        joins = [cast(TransformerLayer, self.layers[i]).joins for i in self.order]
        needs_norm = any(join.needs_final_norm for join in next(filter(None, reversed(joins)), []))
        final_norm = needs_norm if config.final_norm is None else config.final_norm
        self.final_norm: nn.Module | None = norms.build(config.norm, d_model=config.d_model) if final_norm else None

        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weights of skips to one."""
        if self.skips is not None:
            nn.init.ones_(self.skips)

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        documents: Tensor | None = None,
        state: TransformerState | None = None,
    ) -> tuple[Tensor, TransformerState]:
        """Run the layers over `x` [B, T, D], which follows the tokens in `state`, returned by the previous call or by `start`.

        The arguments are those of `attnkit.stack.base.DecoderStack.forward`; unless `causal`, a token reads all others.

        Raises:
            ConfigurationError: The sequence is longer than the position encoding allows, or a mixer cannot read `attn_mask`.
            ValueError: There are no rows or no tokens.
        """
        if state is not None and state.beams is not None:
            return self._next_of_beams(x, state, state.beams)
        if state is not None and state.next is not None:
            return self._next_in_room(x, state, state.next[:1])
        refuse_empty(x)
        batch, length = x.shape[:2]
        state = TransformerState(torch.empty(batch, 0, dtype=torch.long, device=x.device)) if state is None else state
        past = state.positions.shape[1]
        self._check_inputs(x.shape[:2], past, attn_mask, documents)
        if key_mask is not None:
            masks.check_bool(key_mask, "key_mask", x.shape[:2])
        real = key_mask
        if key_mask is not None or state.key_mask is not None:
            key_mask = extended(state.key_mask, key_mask, batch, past, length, x.device)  # [B, K]
        columns = torch.arange(past + length, device=x.device)[None]  # [1, K]
        key_positions = columns if key_mask is None else masks.positions(key_mask)  # [1 or B, K]; without padding, the columns
        query_positions = key_positions[:, past:]
        self._check_length(past + length, None if key_mask is None else query_positions)
        starts = None if documents is None else masks.starts(documents, real)
        allowed = self._allowed(query_positions, key_positions, key_mask, attn_mask, documents)
        known = Tokens(real=real, starts=starts)
        x, after = self._run(x, state, query_positions, key_positions, columns, allowed, known, is_padded=key_mask is not None)
        seen = key_positions.expand(batch, -1)
        return x, replace(state, positions=seen, key_mask=key_mask, layers=after)

    def _next_of_beams(self, x: Tensor, state: TransformerState, beams: Beams) -> tuple[Tensor, TransformerState]:
        """Run the layers over the next token of each hypothesis, [B N, 1, D], in parallel and at the same position in each row."""
        batch, count = beams.read.shape[:2]
        known = state.positions if state.key_mask is not None else state.positions[:1]
        if state.next is None:
            query_positions = (known[:, -1:] + 1).expand(-1, count)
            self._check_length(beams.length + 1, None if state.key_mask is None else query_positions)
            beams, key_positions, after_next = beams.extended(), torch.cat([known, query_positions], 1), None
        else:
            self._check_length(beams.length)
            places = state.next[:1] + torch.arange(count, device=x.device)
            query_positions = (known.index_select(1, state.next[:1] - 1) + 1).expand(-1, count)
            beams, key_positions = beams.written(places), known.index_copy(1, places, query_positions)
            after_next = state.next + count
        columns = torch.arange(beams.length, device=x.device)[None]
        allowed = [beams.mask] * len(self.kinds)
        x = x.reshape(batch, count, -1)
        x, after = self._run(x, state, query_positions, key_positions, columns, allowed, Tokens(), is_padded=True)
        seen = key_positions.expand(batch, -1)
        return x.reshape(batch * count, 1, -1), replace(state, positions=seen, layers=after, beams=beams, next=after_next)

    def _next_in_room(self, x: Tensor, state: TransformerState, column: Tensor) -> tuple[Tensor, TransformerState]:
        """Run the layers over the next token of each row, [B, 1, D], whose column in the caches is a number on the device."""
        self._check_length(state.positions.shape[1])
        columns = torch.arange(state.positions.shape[1], device=x.device)[None]
        read = columns <= column
        key_positions = columns
        if state.key_mask is not None:
            read = read & state.key_mask
            key_positions = masks.positions(read)
        query_positions = key_positions.index_select(1, column)
        allowed = self._allowed(query_positions, key_positions, read)
        x, after = self._run(x, state, query_positions, key_positions, columns, allowed, Tokens(), is_padded=True)
        return x, replace(state, layers=after, next=(column + 1).expand(len(x)))

    def _allowed(
        self,
        query_positions: Tensor,
        key_positions: Tensor,
        key_mask: Tensor | None,
        restriction: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> list[Mask | None]:
        """Return the mask of each kind of layer; see `mask_between`."""
        is_whole = restriction is None and query_positions.shape[1] == key_positions.shape[1]
        stretches = stretches_in(documents, key_mask) if is_whole else None
        if documents is not None and stretches is None and any(reads_masks for _, _, reads_masks in self.kinds):
            restriction = masks.combine(restriction, masks.document(numbers := masks.starts(documents, key_mask).cumsum(1), numbers))
        given = {"key_mask": key_mask, "restriction": restriction}
        pays = documents is not None or self.causal  # else the padding of keys alone takes one row
        masks_of_kinds: list[Mask | None] = []
        for _, window, reads_masks in self.kinds:
            chosen = stretches if pays or window else None
            mask = (
                mask_between(query_positions, key_positions, **given, stretches=chosen, window=window, causal=self.causal)
                if reads_masks
                else None
            )
            masks_of_kinds.append(mask)
        return masks_of_kinds

    def _run(
        self,
        x: Tensor,
        state: TransformerState,
        query_positions: Tensor,
        key_positions: Tensor,
        columns: Tensor,
        allowed: Sequence[Mask | None],
        known: Tokens,
        *,
        is_padded: bool,
    ) -> tuple[Tensor, tuple[State | None, ...]]:
        """Run the layers over `x` [B, T, D] at these positions, each kind with its mask; return the output and the layers' states."""
        added = embedding_at(self.position, query_positions, columns)
        x = x if added is None else x + added.to(x.dtype)
        x = self.dropout(x if self.embedding_norm is None else self.embedding_norm(x))
        tokens, encodings = [], [self.position, *self.other_positions]
        for (place, _, _), mask in zip(self.kinds, allowed, strict=True):
            position = None if place is None else cast(Position, encodings[place])
            bias = None if position is None else bias_between(position, query_positions, key_positions, is_padded=is_padded)
            rotation = None if position is None else rotation_at(position, query_positions, columns)
            tokens.append(replace(known, mask=mask, bias=bias, rotation=rotation, positions=query_positions))
        memory_tokens = []
        if state.memory:
            mask, there = None if state.memory_mask is None else Mask.of(masks.key(state.memory_mask)), state.memory_positions
            for position in self._across():
                bias = None if there is None else bias_between(position, query_positions, there)
                memory_tokens.append(Tokens(mask=mask, bias=bias, rotation=rotation_at(position, query_positions, columns)))
        x = x if self.streams == 1 else x[..., None, :].expand(-1, -1, self.streams, -1)
        after: list[State | None] = []
        skipped: list[Tensor] = []
        first_value: Tensor | None = None
        layers = list(self.layers)
        for depth, i in enumerate(self.order):
            if self.skips is not None and depth >= len(self.order) - len(self.skips):
                x = x + self.skips[len(skipped) - 1] * skipped.pop()
            own, keys, use = tokens[self.kind_of[i]], draws.current(), self.order[:depth].count(i)
            # each use of a shared layer drops different elements
            with draws.using(draws.again(keys, use)) if self.training and keys is not None and use > 0 else nullcontext():
                x, layer_state = layers[i](
                    x,
                    own if first_value is None else replace(own, first_value=first_value),
                    state.layers[depth] if state.layers else None,
                    memory=state.memory[i] if state.memory else None,
                    memory_tokens=memory_tokens[self.cross_kind_of[i]] if memory_tokens else None,
                )
            if depth == self.first_value_at:
                first_value, layer_state = cast(HasValues, layer_state).newest_values(query_positions.shape[1])
            after.append(layer_state)
            if self.skips is not None and depth < len(self.skips):
                skipped.append(x)
        x = x if self.streams == 1 else x.sum(-2)
        return x if self.final_norm is None else self.final_norm(x), tuple(after)

    def start(self, memory: Tensor, memory_mask: Tensor | None = None) -> TransformerState:
        """Return the state before the first token, with the memory [B, S, D] projected for every layer."""
        batch, length = memory.shape[:2]
        if memory_mask is not None:
            masks.check_bool(memory_mask, "memory_mask", memory.shape[:2])
        columns = torch.arange(length, device=memory.device)[None]  # [1, S]
        memory_positions = columns if memory_mask is None else masks.positions(memory_mask)  # [1 or B, S]
        tokens = [Tokens(rotation=rotation_at(position, memory_positions, columns), real=memory_mask) for position in self._across()]
        return TransformerState(
            positions=torch.empty(batch, 0, dtype=torch.long, device=memory.device),
            memory=tuple(
                cast(TransformerLayer, layer).remember(memory, tokens[kind])
                for layer, kind in zip(self.layers, self.cross_kind_of, strict=True)
            ),
            memory_mask=memory_mask,
            memory_positions=memory_positions.expand(batch, -1),
        )

    def _across(self) -> list[Position]:
        """Return the position encodings of the memory, one for each width of heads among the layers."""
        return [self.cross_position, *(cast(Position, position) for position in self.other_cross_positions)]

    def _check_length(self, columns: int, positions: Tensor | None = None) -> None:
        """Raise unless there are positions for the `columns` of all tokens or, in padded rows, for the `positions` of the newest tokens."""
        for position in (self.position, *self.other_positions):
            limit = cast(Position, position).max_length
            if limit is None or columns <= limit:
                continue
            tokens = columns if positions is None else int(positions.max()) + 1  # padding takes up no position
            if tokens > limit:
                raise ConfigurationError(
                    f"a sequence of {tokens} tokens does not fit into positions that end at {limit}; "
                    f"shorten it, raise the position's max_length, or use positions of any length (sinusoidal, rotary, alibi, relative). "
                    f"In a recipe, data.max_length or data.context limits the length of texts"
                )

    def _check_inputs(self, shape: torch.Size, past: int, attn_mask: Tensor | None, documents: Tensor | None) -> None:
        if attn_mask is not None and self.unmaskable:
            raise ConfigurationError(
                f"attn_mask cannot restrict the mixer {self.unmaskable[0]!r}, which does not read tokens pair by pair: remove attn_mask "
                f"(pass the documents of packed rows as documents)"
            )
        if documents is not None and past:
            raise ValueError("documents apply to whole rows, not to tokens that continue a state; pass documents or state, not both")
        if documents is not None and documents.shape != shape:
            raise ValueError(f"documents must have shape {list(shape)}, one number per token, but has shape {list(documents.shape)}")


def _streams(layers: Sequence[TransformerLayer]) -> int:
    """Return the number of residual streams in a stack."""
    counts = {join.streams for layer in layers for join in layer.joins}
    if len(counts) > 1:
        raise ConfigurationError(
            f"the layers of a stack share their streams, but these have {' and '.join(map(str, sorted(counts)))}: use one residual for all"
        )
    return counts.pop() if counts else 1
