"""Layers: what stacks are made of."""

from attnkit.layers.legality import check_legal
from attnkit.layers.multi_head import KeyValues, MultiHead
from attnkit.layers.transformer import Transformer, TransformerState
from attnkit.layers.transformer_layer import TransformerLayer

__all__ = ["KeyValues", "MultiHead", "Transformer", "TransformerLayer", "TransformerState", "check_legal"]
