"""The base of framings with one tokenizer."""

from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from typing_extensions import override

from attnkit.corpus.base import Labels
from attnkit.data.base import Framing
from attnkit.data.cache import trained
from attnkit.registry import Spec, TokenizerSpec, require_at_least, tokenizers
from attnkit.tokenizer import Tokenizer


class TokenizedFraming(Framing):
    """A framing with one tokenizer, which checkpoints keep.

    Args:
        corpus: Spec of a corpus of the kind that this framing takes.
        predict: The location of the inputs for prediction.
        tokenizer: Spec of the tokenizer; an untrained one is trained on `training_texts`.
        batch_tokens: Maximum number of positions in a batch over all processes, padding included.
        seed: Seed, at least 0; also passed to the corpus.
        num_workers: Processes that load batches (0: the main process).
        labels: The kind of labels, if the corpus has several.

    Raises:
        ConfigurationError: A number is out of range, or the corpus is of another kind.
    """

    def __init__(
        self,
        *,
        corpus: Spec,
        predict: str | None,
        tokenizer: TokenizerSpec,
        batch_tokens: int,
        seed: int,
        num_workers: int,
        labels: Labels | None = None,
    ) -> None:
        super().__init__(corpus=corpus, predict=predict, seed=seed, num_workers=num_workers, labels=labels)
        require_at_least(1, batch_tokens=batch_tokens)
        self.batch_tokens = batch_tokens
        self._tokenizer: Tokenizer = tokenizers.build(tokenizer)

    @abstractmethod
    def training_texts(self) -> Iterable[str]:
        """Return the texts on which an untrained tokenizer is trained."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The trained tokenizer."""
        return trained(self._tokenizer, self.training_texts)

    @property
    def tokenizer_spec(self) -> dict[str, Any]:
        """Plain data from which the trained tokenizer is rebuilt."""
        return self.tokenizer.spec

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer_spec}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.tokenizer = tokenizers.build(state_dict["tokenizer"])
