"""Multi-token prediction: further tokens after the next one, as a training loss."""

from attnkit.multi_token.base import MultiToken

__all__ = ["MultiToken"]
