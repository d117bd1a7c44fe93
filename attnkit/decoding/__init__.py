"""Decoding: from a model's next-token logits to sequences."""

from attnkit.decoding.base import Step
from attnkit.decoding.beam import beam
from attnkit.decoding.greedy import greedy

__all__ = ["Step", "beam", "greedy"]
