"""From what a model reads to vectors."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from attnkit.registry import ConfigurationError


class VectorCounts(NamedTuple):
    """How many words of a vocabulary have a vector in a file. As a string: a line that says so.

    Attributes:
        exact: Words that are in the file as they are.
        lower_case: Words that are there in lower case only, and take that vector.
        unknown: Words without a vector.
    """

    exact: int
    lower_case: int
    unknown: int

    def __str__(self) -> str:
        lower = f" ({self.lower_case:,} of them in lower case only)" if self.lower_case else ""
        return f"{self.exact + self.lower_case:,} of {sum(self):,} words have a vector{lower}, {self.unknown:,} have none"


class Embedding(nn.Module, ABC):
    """A map from what a model reads to vectors [B, T, D].

    Attributes:
        reads: What it reads: `tokens` [B, T] (int64), or an `image` [B, C, H, W] (float).
        weight: The table [V, D] that a tied output projection uses too, or None if there is nothing to tie.
        has_class_token: Whether the first of its vectors is one of its own, for the whole sequence.
    """

    reads: ClassVar[Literal["tokens", "image"]] = "tokens"
    weight: nn.Parameter | None
    has_class_token: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("weight", None)

    @abstractmethod
    def forward(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        """Embed.

        Args:
            inputs: What `reads` says.
            segments: Which part of the input each token belongs to, [B, T] int64 (BERT's sentence A is 0, B is 1). Default: all 0.

        Returns:
            [B, T, D].

        Raises:
            ConfigurationError: `segments` are given to an embedding without segments.
        """

    def load_vectors(self, words: Sequence[str]) -> VectorCounts | None:
        """Take what a file has for the words of the vocabulary, before the first training. Most embeddings have no file: nothing happens.

        Args:
            words: The word of each id, V of them.

        Returns:
            How many words have a vector, or None without a file.
        """
        return None


def refuse_segments(segments: Tensor | None) -> None:
    """Raise if an embedding without segments is given some."""
    if segments is not None:
        raise ConfigurationError("this embedding has no segments; use {name: token, num_segments: 2}, or leave segments out")
