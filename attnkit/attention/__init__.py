"""Attention kinds: one score, one file."""

from attnkit.attention.base import Attention, Backend, InnerProduct

__all__ = ["Attention", "Backend", "InnerProduct"]
