"""Normalizers: from logits to attention weights, one per file."""

from attnkit.normalizer.base import Exponential, Normalizer

__all__ = ["Exponential", "Normalizer"]
