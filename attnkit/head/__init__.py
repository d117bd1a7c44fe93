"""Heads, which map the output of a stack to logits."""

from attnkit.head.base import Head

__all__ = ["Head"]
