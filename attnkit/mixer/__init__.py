"""Mixers: the modules that move information between tokens."""

from attnkit.mixer.base import Direction, Growth, Mixer, Tokens, refuse_empty
from attnkit.mixer.config import AttentionConfig, MixerConfig

__all__ = ["AttentionConfig", "Direction", "Growth", "Mixer", "MixerConfig", "Tokens", "refuse_empty"]
