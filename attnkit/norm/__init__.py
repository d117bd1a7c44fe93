"""Norms."""

from attnkit.norm.base import Norm

__all__ = ["Norm"]
