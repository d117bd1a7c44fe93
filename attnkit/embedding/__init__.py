"""Embeddings."""

from attnkit.embedding.base import Embedding, VectorCounts

__all__ = ["Embedding", "VectorCounts"]
