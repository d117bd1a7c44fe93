"""Position encodings."""

from attnkit.position.base import Position, QueryBias, Rotation

__all__ = ["Position", "QueryBias", "Rotation"]
