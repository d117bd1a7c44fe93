# https://doi.org/10.1162/neco.1997.9.8.1735
"""Recurrent layers in one or two directions, and their states."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from attnkit import masks
from attnkit.dropout import Dropout
from attnkit.layers.config import RecurrentConfig
from attnkit.mixer import refuse_empty
from attnkit.mixer.recurrence.recurrent_layer import CellState, RecurrentLayer
from attnkit.mixer.recurrence.tokens import rows
from attnkit.registry import ConfigurationError, norms
from attnkit.state import State


@dataclass(frozen=True)
class RecurrentState(State):
    """The states of all layers after the tokens so far, from the lowest layer to the highest."""

    layers: tuple[CellState, ...]


class Recurrent(nn.Module):
    """Recurrent layers, each over the outputs of the one below; with two directions, each direction has half the width.

    Dropout applies between layers, but not to states passed on in time (Zaremba et al. 2014, https://arxiv.org/abs/1409.2329).

    Args:
        input_dim: Width of the input (default: D).
        bidirectional: Whether every layer reads the sequence in both directions.

    Raises:
        ConfigurationError: The cell is unknown, or `d_model` is odd with two directions.

    Example:
        >>> layers = Recurrent(RecurrentConfig(d_model=8, num_layers=2, cell="lstm"), bidirectional=True)
        >>> y, state = layers(torch.randn(2, 5, 8), key_mask=torch.tensor([[True] * 5, [False] * 2 + [True] * 3]))
        >>> y.shape, y[1, :2].abs().sum().item()
        (torch.Size([2, 5, 8]), 0.0)
    """

    def __init__(self, config: RecurrentConfig, *, input_dim: int | None = None, bidirectional: bool = False) -> None:
        super().__init__()
        cell, d_model = config.cell, config.d_model
        if bidirectional and d_model % 2:
            raise ConfigurationError(f"a bidirectional layer gives half of d_model to each direction, so d_model ({d_model}) must be even")
        width = d_model // 2 if bidirectional else d_model
        inputs = [d_model if input_dim is None else input_dim, *[d_model] * (config.num_layers - 1)]
        self.layers = nn.ModuleList(RecurrentLayer(cell=cell, input_dim=i, hidden_dim=width) for i in inputs)
        backward = inputs if bidirectional else []
        self.backward_layers = nn.ModuleList(RecurrentLayer(cell=cell, input_dim=i, hidden_dim=width) for i in backward)
        self.embedding_norm: nn.Module | None = norms.build("layer_norm", d_model=d_model) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)

    def normed(self, x: Tensor) -> Tensor:
        """Return embedded tokens [..., D], normalised if there is an embedding norm."""
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def forward(self, x: Tensor, *, key_mask: Tensor | None = None, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Run the layers over `x` [B, T, I], which follows the tokens in `state` (default: zeros; layers in two directions have none).

        In `key_mask` [B, T] bool, True is a real token (default: all); padding may be on either side. Returns the output [B, T, D], zero at
        padding, and the state after the last real token (in the backward direction, after the first).
        """
        refuse_empty(x)
        x, before = self.normed(x), None if state is None else state.layers
        if key_mask is None:
            return self.run(x, before)
        masks.check_bool(key_mask, "key_mask", x.shape[:2])
        order = (~key_mask).int().argsort(dim=1, stable=True)  # real tokens first, as the kernels need them
        y, after = self.run(rows(x, order), before, real=key_mask.gather(1, order))
        return rows(y, order.argsort(dim=1)), after

    def run(
        self, x: Tensor, states: tuple[CellState, ...] | None = None, *, real: Tensor | None = None, first: int = 0
    ) -> tuple[Tensor, RecurrentState]:
        """Run the layers from `first` on over `x`, in which real tokens precede padding; `states` are those of all layers."""
        if self.backward_layers:
            length = x.shape[1]
            end = length if real is None else real.sum(1, keepdim=True)
            reverse = (end - 1 - torch.arange(length, device=x.device)[None]) % length  # the index is its own inverse; padding stays last
        after = []
        for i in range(first, len(self.layers)):
            x = self.dropout(x, call=i)
            y, state = self.layers[i](x, None if states is None else states[i], real=real)
            if self.backward_layers:
                back, other = self.backward_layers[i](rows(x, reverse), real=real)
                y, state = torch.cat([y, rows(back, reverse)], -1), _side_by_side(state, other)
            x = y
            after.append(state)
        return self.dropout(x, call=len(self.layers)), RecurrentState(tuple(after))

    def step(self, x: Tensor, states: tuple[CellState, ...], *, position: int = 0) -> tuple[Tensor, tuple[CellState, ...]]:
        """Run all layers over one token [B, I] -> [B, D]; dropout depends on its position."""
        after = []
        for i, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            after.append(cast(RecurrentLayer, layer).step(self.dropout(x, call=i, position=position), state))
            x = after[-1].hidden
        return self.dropout(x, call=len(self.layers), position=position), tuple(after)


def _side_by_side(one: CellState, two: CellState) -> CellState:
    cell = None if one.cell is None or two.cell is None else torch.cat([one.cell, two.cell], -1)
    return CellState(torch.cat([one.hidden, two.hidden], -1), cell)
