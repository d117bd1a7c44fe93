# https://doi.org/10.1207/s15516709cog1402_1
"""Recurrent layers as mixers, in one direction or both, with a new state for each document."""

from typing import ClassVar

import torch
from torch import Tensor

from attnkit.mixer.base import Direction, Mixer, Tokens
from attnkit.mixer.recurrence.recurrent_layer import Cell, CellState, RecurrentLayer
from attnkit.mixer.recurrence.tokens import in_full_precision, reversed_tokens, rows, silent
from attnkit.registry import ConfigurationError


class RecurrentMixer(Mixer[CellState]):
    """A recurrent layer over the tokens, without a projection: its hidden states are the output.

    In the direction `bidirectional`, a second layer reads from the end, and each has half the width, so `d_model` must be even. Both
    compute in fp32 (float64 in a float64 model), even under autocast.

    Raises:
        ConfigurationError: `d_model` is odd in the direction `bidirectional`.
    """

    directions = frozenset({"causal", "bidirectional"})
    growth = "constant"
    cell: ClassVar[Cell]

    def __init__(self, *, d_model: int, direction: Direction = "causal") -> None:
        super().__init__()
        both = direction == "bidirectional"
        if both and d_model % 2:
            raise ConfigurationError(
                f"the mixer {self.cell!r} gives half of d_model to each direction, so d_model ({d_model}) must be even"
            )
        width = d_model // 2 if both else d_model
        self.layer = RecurrentLayer(cell=self.cell, input_dim=d_model, hidden_dim=width)
        self.backward_layer = RecurrentLayer(cell=self.cell, input_dim=d_model, hidden_dim=width) if both else None

    def forward(self, x: Tensor, tokens: Tokens, state: CellState | None = None) -> tuple[Tensor, CellState | None]:
        """Mix; see `Mixer.forward`."""
        y, after = _run(self.layer, x, tokens, state)
        if self.backward_layer is None:
            return y, after
        back, _ = _run(self.backward_layer, x.flip(1), reversed_tokens(tokens), None)
        return torch.cat([y, back.flip(1)], -1), None


def _run(layer: RecurrentLayer, x: Tensor, tokens: Tokens, state: CellState | None) -> tuple[Tensor, CellState]:
    """Run a layer over the real tokens of each document. The kernels need one document per row, with real tokens before padding."""
    dtype = x.dtype
    with torch.autocast(x.device.type, enabled=False):
        (x,) = in_full_precision(x)
        if tokens.starts is not None:
            y, after = _run_documents(layer, x, tokens, tokens.starts)
        elif tokens.real is not None:
            order = (~tokens.real).long().argsort(dim=1, stable=True)
            y, after = layer(rows(x, order), state, real=tokens.real.gather(1, order))
            y = rows(y, order.argsort(dim=1))
        else:
            y, after = layer(x, state)
    return y.to(dtype), after


def _run_documents(layer: RecurrentLayer, x: Tensor, tokens: Tokens, starts: Tensor) -> tuple[Tensor, CellState]:
    """Run a layer over rows of packed documents, each document in its own row, [N, L]. The state is that of a row's last document."""
    real = torch.ones_like(starts) if tokens.real is None else tokens.real
    document = starts.flatten().cumsum(0) - 1  # [B T]; the first token of each row starts a document
    count = real.flatten().cumsum(0)
    index_in_document = count - 1 - (count - real.flatten().long())[starts.flatten()][document]  # among the real tokens of its document
    number, longest = int(document[-1]) + 1, max(1, int(index_in_document.max()) + 1)
    index = torch.where(real.flatten(), document * longest + index_in_document, number * longest)  # padding goes last
    apart = x.new_zeros(number * longest + 1, x.shape[2]).index_put((index,), x.flatten(0, 1))[:-1]
    is_real = (torch.bincount(index, minlength=number * longest + 1) > 0)[:-1]
    y, after = layer(apart.view(number, longest, -1), real=is_real.view(number, longest))
    y = y.flatten(0, 1)[index.clamp(max=number * longest - 1)].view(*x.shape[:2], -1)
    return silent(y, tokens, dim=1), after.select(document.view(starts.shape)[:, -1])
