"""The interface of embeddings, which map token ids, images or audio frames to vectors."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from attnkit.registry import ConfigurationError

Inputs = Literal["tokens", "image", "frames"]
"""The kind of input that an embedding reads."""


class VectorCounts(NamedTuple):
    """How many words of a vocabulary have a vector in a file; `str` gives a one-line summary.

    Example:
        >>> str(VectorCounts(exact=1_500, lower_case=200, unknown=300))
        '1,700 of 2,000 words have a vector (200 only in lower case), 300 do not'
    """

    exact: int  # words that are in the file
    lower_case: int  # words that are in the file only in lower case, and use that vector
    unknown: int  # words without a vector

    def __str__(self) -> str:
        lower = f" ({self.lower_case:,} only in lower case)" if self.lower_case else ""
        return f"{self.exact + self.lower_case:,} of {sum(self):,} words have a vector{lower}, {self.unknown:,} do not"


class Embedding(nn.Module, ABC):
    """A map from the inputs of a model to vectors [B, T, D].

    Attributes:
        reads: Its inputs: `tokens` [B, T] (int64), an `image` [B, C, H, W] (float), or `frames` [B, S, F] (float; padding is zero).
        weight: The table [V, D] that a tied output projection shares, or None if there is nothing to tie.
        stacking: Number of inputs that form one vector.
        has_class_token: Whether the first vector belongs to a class token, which represents the whole sequence.
        num_segments: Number of segments that it tells apart; 0 if it has none.
    """

    reads: ClassVar[Inputs] = "tokens"
    weight: nn.Parameter | None
    stacking: int = 1
    has_class_token: bool = False
    num_segments: int = 0

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("weight", None)

    @abstractmethod
    def forward(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        """Embed.

        Args:
            inputs: Token ids, images or frames, according to `reads`.
            segments: The segment of each token, [B, T] int64 (BERT: 0 for sentence A, 1 for sentence B; default: all 0).

        Returns:
            [B, T, D].

        Raises:
            ConfigurationError: `segments` are given, but the embedding has none.
        """

    def mask(self, inputs: Tensor) -> Tensor:
        """Return which vectors are real, [B, T] bool, given which inputs are real: a vector is if its first input is."""
        return inputs[:, :: self.stacking]

    def load_vectors(self, words: Sequence[str]) -> VectorCounts | None:
        """Load the vectors of the vocabulary's words from a file before training starts. Without a file, do nothing.

        Args:
            words: The word of each of the V ids.

        Returns:
            How many words have a vector, or None if there is no file.
        """
        return None


def looked_up(inputs: Tensor, table: Tensor) -> Tensor:
    """Return the rows of a table [V, D] that have the ids `inputs` [...], [..., D]; on a CPU, an `IndexError` names an id without one."""
    try:
        return nn.functional.embedding(inputs, table)
    except IndexError as error:
        wrong = inputs[(inputs < 0) | (inputs >= len(table))]
        raise IndexError(f"the id {int(wrong[0])} is outside of the vocabulary, whose ids are 0 to {len(table) - 1}") from error


def refuse_segments(segments: Tensor | None) -> None:
    """Raise a `ConfigurationError` if there are `segments`, for an embedding that has none."""
    if segments is not None:
        raise ConfigurationError("this embedding has no segments; use {name: token, num_segments: 2}, or do not pass segments")


def require_one_segment(embedding: Embedding) -> None:
    """Raise a `ConfigurationError` if an embedding has several segments, for a model that takes none."""
    if (count := embedding.num_segments) > 1:
        raise ConfigurationError(
            f"num_segments={count} has no effect, because all tokens of this model have the first segment: use 1 or 0, or a model of an "
            f"encoder, which takes segments"
        )
