"""Initialisations: how the parameters of a model are drawn."""

from attnkit.init.base import Init, Part

__all__ = ["Init", "Part"]
