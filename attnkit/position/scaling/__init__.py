"""Scalings of rotary positions: frequencies for sequences longer than those of pretraining."""

from attnkit.position.scaling.base import Scaling

__all__ = ["Scaling"]
