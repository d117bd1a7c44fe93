# https://arxiv.org/abs/1508.04025
"""A recurrent decoder with a context: a fixed vector, or one that attention computes at each step."""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnkit import masks
from attnkit.layers.config import RecurrentEncoderDecoderConfig
from attnkit.layers.recurrent import Recurrent, RecurrentState
from attnkit.linear import Linear
from attnkit.masks import Mask
from attnkit.mixer import Tokens, refuse_empty
from attnkit.mixer.cached_attention import CachedAttention
from attnkit.mixer.key_values import KeyValues
from attnkit.mixer.multi_head import MultiHeadAttention
from attnkit.mixer.recurrence.recurrent_layer import CellState, RecurrentLayer
from attnkit.registry import AttentionSpec, BackendName, ConfigurationError, attentions
from attnkit.state import State


@dataclass(frozen=True)
class ContextState(State):
    """The state of a recurrent decoder.

    Attributes:
        layers: The state of each layer.
        fed: [B, D], the vector read with the next input: the fixed context, or the last output (input feeding); or None.
        memory: The keys and values of attention, or None without attention.
        memory_mask: [B, S] bool, or None.
    """

    layers: tuple[CellState, ...]
    fed: Tensor | None = None
    memory: KeyValues | None = None
    memory_mask: Tensor | None = None


class UnprojectedAttention(CachedAttention):
    """Single-head attention without projections, as in recurrent models: the states are the queries, keys and values.

    The arguments are those of `RecurrentEncoderDecoderConfig`.

    Raises:
        ConfigurationError: The attention is unknown or has a wrong argument.
        ValueError: The score has no such backend.

    Example:
        >>> attention = UnprojectedAttention(d_model=8, attention="dot_product")
        >>> attention(torch.randn(2, 5, 8), Tokens(), attention.remember(torch.randn(2, 7, 8), Tokens()))[0].shape
        torch.Size([2, 5, 8])
    """

    directions = frozenset({"cross"})

    def __init__(self, *, d_model: int, attention: AttentionSpec, attention_dropout: float = 0.0, backend: BackendName = "auto") -> None:
        super().__init__(direction="cross", window=None)
        self.attention = attentions.build(attention, head_dim=d_model, num_heads=1, num_kv_heads=1)
        self.attention.check_backend(backend)
        self.dropout, self.backend = attention_dropout, backend

    def project(self, memory: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the memory [B, K, D], after the score's own projection."""
        return self.attention.project_key(memory[:, None]), memory[:, None]

    def attend(self, x: Tensor, tokens: Tokens, memory: KeyValues) -> Tensor:
        """Attend from `x` [B, T, D] to the keys and values of `memory`."""
        return self.attended(self.attention.project_query(x[:, None]), memory.key, memory.value, tokens)[:, 0]


class ContextDecoder(nn.Module):
    """Recurrent layers that read a context with their input, or join it with their output.

    Args:
        config: The options. With `placement` `after`, attention reads the new state of the highest layer (Luong); with `before`, the
            previous state of the lowest layer, which reads the context with its input (Bahdanau). Without attention, the fixed context is
            only the initial state (`after`), or is also read with every input (`before`).

    Raises:
        ConfigurationError: A name is unknown, or there is nothing to feed for `input_feeding`.
        ValueError: `num_heads` does not divide `d_model`, or the score has no such backend.

    Example:
        >>> config = RecurrentEncoderDecoderConfig(d_model=8, num_layers=2, cell="gru", attention="additive", placement="before")
        >>> encoder, decoder = Recurrent(config), ContextDecoder(config)
        >>> y, state = decoder(torch.randn(3, 4, 8), decoder.start(*encoder(torch.randn(3, 6, 8))))
        >>> y.shape
        torch.Size([3, 4, 8])
    """

    def __init__(self, config: RecurrentEncoderDecoderConfig) -> None:
        super().__init__()
        d_model, attention, placement = config.d_model, config.attention, config.placement
        if placement not in ("after", "before"):
            raise ConfigurationError(f"placement must be after or before, but is {placement!r}")
        if config.input_feeding and (attention is None or placement == "before"):
            why = "there is no attention" if attention is None else "placement 'before' already reads the context with the input"
            raise ConfigurationError(f"input_feeding needs attention after the cell, but {why}; remove it")
        self.d_model, self.placement, self.input_feeding = d_model, placement, config.input_feeding
        input_dim = 2 * d_model if config.input_feeding or placement == "before" else d_model
        layers = config if config.num_decoder_layers is None else replace(config, num_layers=config.num_decoder_layers)
        self.recurrent = Recurrent(layers, input_dim=input_dim)
        self.attention: UnprojectedAttention | MultiHeadAttention | None = None
        if attention is not None:
            options: dict[str, Any] = {"attention": attention, "attention_dropout": config.attention_dropout, "backend": config.backend}
            self.attention = (
                UnprojectedAttention(d_model=d_model, **options)
                if config.num_heads == 1
                else MultiHeadAttention(d_model=d_model, num_heads=config.num_heads, direction="cross", **options)
            )
        has_context = attention is not None or placement == "before"
        self.readout = Linear(2 * d_model, d_model, bias=False) if has_context else None

    def start(self, memory: Tensor, encoded: RecurrentState, memory_mask: Tensor | None = None) -> ContextState:
        """Return the state before the first token.

        Args:
            memory: The encoder's output [B, S, D], projected here once for all steps.
            encoded: The encoder's final states; each layer starts from that of the corresponding layer, counted from the highest.
            memory_mask: [B, S] bool, True = real token (default: all).
        """
        deeper = len(encoded.layers) - len(self.recurrent.layers)
        layers = tuple(encoded.layers[max(0, deeper + i)] for i in range(len(self.recurrent.layers)))
        if self.attention is None:
            return ContextState(layers, fed=encoded.layers[-1].hidden if self.placement == "before" else None)
        fed = memory.new_zeros(memory.shape[0], self.d_model) if self.input_feeding else None
        return ContextState(layers, fed, self.attention.remember(memory, Tokens()), memory_mask)

    def forward(self, x: Tensor, state: ContextState) -> tuple[Tensor, ContextState]:
        """Decode `x` [B, T, D], which follows `state`; return the output [B, T, D] and the state after `x`."""
        refuse_empty(x)
        mask = None if state.memory_mask is None else Mask.of(masks.key(state.memory_mask))
        x, layers, fed = self.recurrent.normed(x), state.layers, state.fed
        if self.attention is None and fed is not None:  # the same context for all tokens
            context = fed[:, None].expand(-1, x.shape[1], -1)
            y, after = self.recurrent.run(torch.cat([x, context], -1), layers)
            y, layers = self._join(context, y), after.layers
        elif self.input_feeding:
            y, layers, fed = self._feed(x, state, mask)
        elif self.placement == "before":
            y, layers = self._attend_before(x, state, mask)
        else:
            y, after = self.recurrent.run(x, layers)
            layers = after.layers
            if self.attention is not None:
                y = self._join(self._attend(y, state, mask), y)
        return y, ContextState(layers, fed, state.memory, state.memory_mask)

    def _feed(self, x: Tensor, state: ContextState, mask: Mask | None) -> tuple[Tensor, tuple[CellState, ...], Tensor]:
        """Feed each output into the next step: all layers take one token at a time."""
        layers, fed, outputs = state.layers, cast(Tensor, state.fed), []
        for t, token in enumerate(x.unbind(1)):
            h, layers = self.recurrent.step(torch.cat([token, fed], -1), layers, position=t)
            fed = self._join(self._attend(h[:, None], state, mask, first_query=t)[:, 0], h)
            outputs.append(fed)
        return torch.stack(outputs, 1), layers, fed

    def _attend_before(self, x: Tensor, state: ContextState, mask: Mask | None) -> tuple[Tensor, tuple[CellState, ...]]:
        """Read a context with each input: the lowest layer takes one token at a time, the layers above the whole sequence."""
        lowest, last = cast(RecurrentLayer, self.recurrent.layers[0]), state.layers[0]
        contexts, outputs, drop = [], [], self.recurrent.dropout
        walk = lowest.walk(drop(x)) if x.shape[1] > 1 else None
        for t, token in enumerate(x.unbind(1)):
            contexts.append(self._attend(last.hidden[:, None], state, mask, first_query=t)[:, 0])
            if walk is None:
                last = lowest.step(drop(torch.cat([token, contexts[-1]], -1)), last)
            else:
                last = walk.step(t, drop(contexts[-1], position=t, first=x.shape[-1]), last)
            outputs.append(last.hidden)
        y, above = self.recurrent.run(torch.stack(outputs, 1), state.layers, first=1)
        return self._join(torch.stack(contexts, 1), y), (last, *above.layers)

    def _attend(self, query: Tensor, state: ContextState, mask: Mask | None, *, first_query: int = 0) -> Tensor:
        assert self.attention is not None
        assert state.memory is not None
        context: Tensor = self.attention(query, Tokens(mask=mask, first=first_query), state.memory)[0]
        return context

    def _join(self, context: Tensor, h: Tensor) -> Tensor:
        """Return tanh(W [c; h])."""
        assert self.readout is not None
        return torch.tanh(self.readout(torch.cat([context, h], -1)))
