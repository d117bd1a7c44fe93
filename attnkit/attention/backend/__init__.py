"""Backends: implementations that compute attention from a score."""

from attnkit.attention.backend.base import Backend, Inputs, Refused

__all__ = ["Backend", "Inputs", "Refused"]
