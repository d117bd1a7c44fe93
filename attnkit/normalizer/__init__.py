"""Normalizers, which turn logits into attention weights, one per file."""

from attnkit.normalizer.base import Exponential, Normalizer

__all__ = ["Exponential", "Normalizer"]
