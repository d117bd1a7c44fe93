"""Multi-token prediction: a training loss for tokens beyond the next one."""

from attnkit.multi_token.base import MultiToken

__all__ = ["MultiToken"]
