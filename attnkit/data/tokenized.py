"""The base of framings with one tokenizer."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from attnkit.data.base import Batch, Framing
from attnkit.data.batching import Sequences, TokenExamples
from attnkit.data.cache import trained
from attnkit.data.config import TokensConfig
from attnkit.data.summary import Summary
from attnkit.registry import TokenizerSpec, tokenizers
from attnkit.tokenizer import Tokenizer


class TokenizedFraming(Framing[Batch]):
    """A framing with one tokenizer, which checkpoints keep.

    Args:
        config: The options.
        tokenizer: Spec of the tokenizer; an untrained one is trained on `training_texts`.
        **given: Further arguments of the corpus.
    """

    keeps: Sequence[str] = ("tokenizer",)

    def __init__(self, config: TokensConfig, tokenizer: TokenizerSpec, **given: Any) -> None:
        super().__init__(config, **given)
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

    def prompts(self, texts: Sequence[str]) -> TokenExamples:
        """Return texts to be continued, each as at the start of a document, and report their summary."""
        self.summaries.say(Summary.of_texts("predict", self.tokenizer, texts))
        return TokenExamples(Sequences([[Tokenizer.bos_id, *self.tokenizer.encode(text)] for text in texts]), texts)
