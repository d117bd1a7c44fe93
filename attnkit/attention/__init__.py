"""Attention scores, one per file."""

from attnkit.attention.backend import Backend
from attnkit.attention.base import Attention, InnerProduct
from attnkit.attention.bias import FiniteBias, LazyBias
from attnkit.attention.decay import DecayBias

__all__ = ["Attention", "Backend", "DecayBias", "FiniteBias", "InnerProduct", "LazyBias"]
