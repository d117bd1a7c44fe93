"""Attention kinds: one score, one file."""

from attnkit.attention.base import Attention, Backend, InnerProduct
from attnkit.attention.bias import FiniteBias

__all__ = ["Attention", "Backend", "FiniteBias", "InnerProduct"]
