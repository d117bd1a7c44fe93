"""Backends: what computes an attention from its score."""

from attnkit.attention.backend.base import Backend, Inputs, Refused

__all__ = ["Backend", "Inputs", "Refused"]
