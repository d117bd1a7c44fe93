"""Position encodings."""

from attnkit.position.base import Position, Rotation

__all__ = ["Position", "Rotation"]
