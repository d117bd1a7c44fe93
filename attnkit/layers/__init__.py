"""Layers, the building blocks of stacks, and the configuration that they read."""

from attnkit.layers.compatibility import check_compatible
from attnkit.layers.config import (
    EncoderDecoderConfig,
    LayerConfig,
    PlacedLayerConfig,
    RecurrentConfig,
    RecurrentEncoderConfig,
    RecurrentEncoderDecoderConfig,
    TransformerConfig,
)
from attnkit.layers.context_decoder import ContextDecoder, ContextState, UnprojectedAttention
from attnkit.layers.recurrent import Recurrent, RecurrentState
from attnkit.layers.transformer import Transformer
from attnkit.layers.transformer_layer import TransformerLayer
from attnkit.layers.transformer_state import TransformerState
from attnkit.mixer.recurrence.recurrent_layer import CellState, RecurrentLayer

__all__ = [
    "CellState", "check_compatible", "ContextDecoder", "ContextState", "EncoderDecoderConfig", "LayerConfig", "PlacedLayerConfig",
    "Recurrent", "RecurrentConfig", "RecurrentEncoderConfig", "RecurrentEncoderDecoderConfig", "RecurrentLayer", "RecurrentState",
    "Transformer", "TransformerConfig", "TransformerLayer", "TransformerState", "UnprojectedAttention",
]  # fmt: skip
