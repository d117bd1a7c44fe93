"""Residual connections."""

from attnkit.residual.base import Residual

__all__ = ["Residual"]
