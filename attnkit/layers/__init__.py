"""Layers: what stacks are made of."""

from attnkit.layers.context_decoder import ContextDecoder, ContextState, Placement, Score
from attnkit.layers.legality import check_legal
from attnkit.layers.multi_head import KeyValues, MultiHead
from attnkit.layers.recurrent import Cell, CellState, Recurrent, RecurrentLayer, RecurrentState
from attnkit.layers.transformer import Transformer, TransformerState
from attnkit.layers.transformer_layer import TransformerLayer

__all__ = [
    "Cell",
    "CellState",
    "ContextDecoder",
    "ContextState",
    "KeyValues",
    "MultiHead",
    "Placement",
    "Recurrent",
    "RecurrentLayer",
    "RecurrentState",
    "Score",
    "Transformer",
    "TransformerLayer",
    "TransformerState",
    "check_legal",
]
