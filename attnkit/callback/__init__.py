"""Callbacks of Lightning's Trainer."""

from attnkit.callback.attention_maps import AttentionMaps
from attnkit.callback.last_checkpoint import LastCheckpoint

__all__ = ["AttentionMaps", "LastCheckpoint"]
