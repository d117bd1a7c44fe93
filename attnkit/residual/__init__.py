"""Residual connections."""

from attnkit.residual.base import Residual, Sublayer

__all__ = ["Residual", "Sublayer"]
