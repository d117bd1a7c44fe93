"""Feed-forward networks."""

from attnkit.feed_forward.base import FeedForward, make_activation

__all__ = ["FeedForward", "make_activation"]
