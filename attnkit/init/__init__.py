"""Initialisations, which draw the parameters of a model."""

from attnkit.init.base import Init, Part

__all__ = ["Init", "Part"]
