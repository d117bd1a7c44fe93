"""Callbacks for Lightning's Trainer."""

from attnkit.callback.attention_maps import AttentionMaps
from attnkit.callback.divergence import Divergence
from attnkit.callback.finite_check import FiniteCheck
from attnkit.callback.health import UnhealthyError
from attnkit.callback.last_checkpoint import LastCheckpoint
from attnkit.callback.probing import Probing
from attnkit.callback.throughput import Throughput

__all__ = ["AttentionMaps", "Divergence", "FiniteCheck", "LastCheckpoint", "Probing", "Throughput", "UnhealthyError"]
