"""Scalings of rotary positions: frequencies for sequences that are longer than those of the first training."""

from attnkit.position.scaling.base import Scaling

__all__ = ["Scaling"]
