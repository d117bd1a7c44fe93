"""Callbacks of Lightning's Trainer."""

from attnkit.callback.attention_maps import AttentionMaps

__all__ = ["AttentionMaps"]
