"""The base classes of synthetic tasks: rows generated from a seed, with exact answers."""

import inspect
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np
from typing_extensions import override

from attnkit.corpus.base import AnswerCorpus, Pair, PairCorpus, Part
from attnkit.registry import ConfigurationError, fields_as_keywords, require_at_least

BLANK = "."  # a meaningless token that adds distance between others
ASK = "="  # marks the end of a prompt, if nothing else does

_PARTS: tuple[Part, ...] = ("train", "train", "validation", "test")
_ATTEMPTS = 500  # draws per row; if a quarter of the possible rows fit, all fail with a probability below 1e-60


@fields_as_keywords
class Synthetic(AnswerCorpus):
    """Rows generated from a seed. Their tokens are separated by spaces, so use the tokenizer `word`.

    The CRC-32 of a row determines its split (a quarter of all possible rows is for validation, a quarter for test), so no row of
    one split occurs in another, whatever the seeds and the numbers of rows. Each split has its own random generator. If few rows are
    possible, rows repeat within a split.

    Args:
        train_rows: Number of training rows.
        validation_rows: Number of validation rows; 0 for none.
        test_rows: Number of test rows.
        seed: Seed of all rows.

    Raises:
        ConfigurationError: A number is out of range, or the arguments allow too few distinct rows.
    """

    rows = "prompts and answers"

    train_rows: int = 10_000
    validation_rows: int = 500
    test_rows: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        require_at_least(1, train_rows=self.train_rows, test_rows=self.test_rows)
        require_at_least(0, validation_rows=self.validation_rows)
        self._counts: dict[Part, int] = {"train": self.train_rows, "validation": self.validation_rows, "test": self.test_rows}
        self._rows: dict[Part, list[tuple[str, ...]]] = {}

    @abstractmethod
    def row(self, rng: np.random.Generator) -> Sequence[str]:
        """Return a random row: prompt, answer, prompt, answer, ..."""

    @override
    def has(self, part: Part) -> bool:
        return self._counts[part] > 0

    @override
    def turns(self, part: Part) -> list[tuple[str, ...]]:
        if part not in self._rows:
            rng = np.random.default_rng([self.seed, list(self._counts).index(part)])
            self._rows[part] = [self._draw(part, rng) for _ in range(self._counts[part])]
        return self._rows[part]

    def at_distance(self, distance: int) -> Self:
        """Return the same task with another `distance`; raise a `ConfigurationError` if it has no distance or does not allow this one."""
        arguments = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        if "distance" not in arguments:
            raise ConfigurationError(f"{type(self).__name__} has no distance")
        return type(self)(**{**arguments, "distance": distance})

    def _draw(self, part: Part, rng: np.random.Generator) -> tuple[str, ...]:
        """Return a random row of a split."""
        for _ in range(_ATTEMPTS):
            row = tuple(self.row(rng))
            if _PARTS[zlib.crc32("\t".join(row).encode()) % 4] == part:
                return row
        raise ConfigurationError(f"these arguments allow so few rows that none is left for {part}: raise the vocabulary or the length")


class SyntheticPairs(Synthetic, PairCorpus):
    """Synthetic rows with one prompt and one answer."""

    rows = "pairs of texts"

    @override
    def pairs(self, part: Part) -> list[Pair]:
        return [(prompt, answer) for prompt, answer in self.turns(part)]


@fields_as_keywords
class Repetition(SyntheticPairs):
    """Symbols to repeat, and blanks.

    Args:
        length: Number of symbols.
        distance: Number of blanks between the symbols and the answer.
        vocabulary: Number of distinct symbols.
    """

    length: int = 8
    distance: int = 0
    vocabulary: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, length=self.length, vocabulary=self.vocabulary)
        require_at_least(0, distance=self.distance)

    def symbols(self, rng: np.random.Generator) -> list[int]:
        """Return random symbols."""
        found: list[int] = rng.integers(self.vocabulary, size=self.length).tolist()
        return found


def words(tokens: Sequence[object]) -> str:
    """Join tokens into a text.

    Example:
        >>> words([3, 1, BLANK, ASK])
        '3 1 . ='
    """
    return " ".join(map(str, tokens))
