"""The options of generation: length, search or sampling, and their parameters."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypedDict

from attnkit.registry import ConfigurationError, nearest, require_at_least


class Options(TypedDict, total=False):
    """The keyword arguments of every `generate`, `n_best` and `stream`; `Generation` documents them."""

    max_length: int
    min_length: int
    beam_size: int
    length_penalty: float
    temperature: float | None
    top_k: int | None
    top_p: float | None
    repetition_penalty: float
    end_tokens: Sequence[int] | None
    seed: int | None


WHOLE = ("max_length", "min_length", "beam_size", "top_k", "seed")
MAX_SEED = 2**63  # seed + i stays in the range of torch's seeds


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Validated generation options. `model.generate`, `n_best` and `stream` take them as keyword arguments.

    The logits of each step pass through the repetition penalty, minimum length, temperature, top-k and top-p, in this order.

    Args:
        max_length: Maximum number of new tokens, including the end token.
        min_length: Minimum number of new tokens before the end token.
        beam_size: Number of hypotheses that beam search keeps per row; 1 is greedy.
        length_penalty: Exponent of the length by which the log-probability of a hypothesis is divided; 0 favours short outputs.
        temperature: Divides the logits before sampling: 1 samples from the model's own distribution, lower values from a sharper one. With
            None (default), nothing is sampled, and the most probable token is taken.
        top_k: Sample only from the k most probable tokens.
        top_p: Sample only from the smallest set of most probable tokens whose probabilities sum to at least this, in (0, 1].
        repetition_penalty: Makes tokens in a decoder's prompt or among the new tokens less probable; 1 has no effect, 1.2 is typical.
        end_tokens: Token ids that end a row, in place of the model's `eos_id` (the default); with an empty list, none do.
        seed: Row i of a batch samples from its own random stream, with the seed `seed` + i, so its tokens do not depend on the rest of the
            batch (default: a seed from torch's global generator).

    Raises:
        ConfigurationError: A number is out of range, or two options are mutually exclusive.

    Example:
        >>> Generation(max_length=20, temperature=0.8, top_p=0.95, seed=3).samples
        True
    """

    max_length: int = 64
    min_length: int = 0
    beam_size: int = 1
    length_penalty: float = 1.0
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    end_tokens: Sequence[int] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in WHOLE:
            if (number := getattr(self, name)) is not None and not hasattr(number, "__index__"):
                raise ConfigurationError(f"{name} must be a whole number, but is {number!r}")
        require_at_least(1, max_length=self.max_length, beam_size=self.beam_size, top_k=self.top_k)
        require_at_least(0, min_length=self.min_length, seed=self.seed)
        if self.seed is not None and self.seed >= MAX_SEED:
            raise ConfigurationError(f"seed must be below {MAX_SEED}, but is {self.seed}")
        if self.min_length > self.max_length:
            raise ConfigurationError(f"min_length ({self.min_length}) must not exceed max_length ({self.max_length})")
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise ConfigurationError(
                f"temperature must be above 0 and finite, but is {self.temperature}; omit it to take the most probable token"
            )
        if not 0 < self.repetition_penalty < math.inf:
            raise ConfigurationError(f"repetition_penalty must be above 0 and finite, but is {self.repetition_penalty}")
        if not math.isfinite(self.length_penalty):
            raise ConfigurationError(f"length_penalty must be finite, but is {self.length_penalty}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigurationError(f"top_p must be above 0 and at most 1, but is {self.top_p}")
        if self.end_tokens is not None:
            object.__setattr__(self, "end_tokens", _ids(self.end_tokens))
        unused = [name for name in ("top_k", "top_p", "seed") if getattr(self, name) is not None]
        if unused and not self.samples:
            raise ConfigurationError(
                f"without a temperature, nothing is sampled, so {' and '.join(unused)} would have no effect; "
                f"add temperature=1.0 to sample from the model's own distribution"
            )
        if self.samples and self.beam_size > 1:
            raise ConfigurationError(
                f"temperature={self.temperature} and beam_size={self.beam_size} are mutually exclusive: beam search looks for the most "
                f"probable output, sampling draws one at random; remove one of them"
            )

    @classmethod
    def of(cls, options: Options) -> Self:
        """Return a `Generation` with these options.

        Raises:
            ConfigurationError: An option is unknown, or a value is invalid.

        Example:
            >>> Generation.of({"beam_size": 4}).max_length
            64
        """
        names = [field.name for field in fields(cls)]
        if unknown := [option for option in options if option not in names]:
            raise ConfigurationError(f"generation has no option {unknown[0]!r}.{nearest(unknown[0], names)} Options: {', '.join(names)}.")
        return cls(**options)

    @property
    def samples(self) -> bool:
        """Whether tokens are sampled."""
        return self.temperature is not None


def _ids(tokens: Any) -> tuple[int, ...]:
    """Return token ids as a tuple; refuse an iterator, which would be empty for the next batch."""
    try:
        if iter(tokens) is tokens:
            raise TypeError
        found = tuple(map(operator.index, tokens))
    except TypeError:
        raise ConfigurationError(f"end_tokens must be a list of token ids, but is {tokens!r}") from None
    if any(token < 0 for token in found):
        raise ConfigurationError(f"end_tokens must be token ids, which are never negative, but are {list(found)}")
    return found
