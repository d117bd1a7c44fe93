"""Embeddings."""

from attnkit.embedding.base import Embedding

__all__ = ["Embedding"]
