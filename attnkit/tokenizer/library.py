"""The base class of tokenizers that the `tokenizers` library trains and runs."""

from abc import abstractmethod
from collections.abc import Iterable

import tokenizers as hf
from typing_extensions import override

from attnkit.tokenizer.base import Tokenizer


class LibraryTokenizer(Tokenizer):
    """A tokenizer that runs a model of the library, which numbers its tokens from 0.

    A subclass sets `_model`, the pipeline, or None as long as it is not trained, and writes `_ours`.
    """

    _model: hf.Tokenizer | None

    @property
    @override
    def trained(self) -> bool:
        return self._model is not None

    @override
    def encode(self, text: str) -> list[int]:
        model = self._trained_model()
        ids: list[int] = []
        for i, piece in enumerate(self._pieces(text)):
            ids += [self.id_of(piece)] if i % 2 else self._ours(model.encode(piece).ids)
        return ids

    @abstractmethod
    def _ours(self, ids: Iterable[int]) -> list[int]:
        """Return our ids for those of the model."""

    def _trained_model(self) -> hf.Tokenizer:
        if self._model is None:
            raise self._not_trained()
        return self._model
