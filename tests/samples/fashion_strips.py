"""The images of which the strips are composed."""

from samples.fashion_mnist import write

__all__ = ["write"]
