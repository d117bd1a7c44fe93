"""Attention scores, one per file."""

from attnkit.attention.backend import Backend
from attnkit.attention.base import Attention, InnerProduct
from attnkit.attention.bias import FiniteBias, LazyBias

__all__ = ["Attention", "Backend", "FiniteBias", "InnerProduct", "LazyBias"]
