"""Decoding, which turns next-token logits into sequences."""

from attnkit.decoding.base import Start, Step
from attnkit.decoding.beam import Hypotheses, beam
from attnkit.decoding.generation import Generation, Options
from attnkit.decoding.graph import Graphed
from attnkit.decoding.sampling import stream

__all__ = ["Generation", "Graphed", "Hypotheses", "Options", "Start", "Step", "beam", "stream"]
