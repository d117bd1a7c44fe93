"""Stacks."""

from attnkit.stack.base import DecoderStack, EncoderDecoderStack, EncoderStack

__all__ = ["DecoderStack", "EncoderDecoderStack", "EncoderStack"]
