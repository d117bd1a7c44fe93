"""Byte-level byte-pair encoding."""

from collections.abc import Iterable
from typing import Any, Self

import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from typing_extensions import override

from attnkit.registry import ConfigurationError, tokenizers
from attnkit.tokenizer.base import Tokenizer

_SHIFT = len(Tokenizer.special_tokens)  # the model numbers its own tokens from 0; ours come after the special ones
_SMALLEST = _SHIFT + len(pre_tokenizers.ByteLevel.alphabet())


@tokenizers.register("bpe")
class BPE(Tokenizer):
    """Byte-level byte-pair encoding: the most frequent pairs of neighbours become tokens, down to single bytes.

    Every text can be encoded and comes back as it was, so that nothing is unknown. What looks like a special token in a
    text (`<eos>`) is text. Trained and run by the `tokenizers` library.

    Paper: Sennrich et al. 2016, https://arxiv.org/abs/1508.07909

    Args:
        vocab_size: The number of ids to aim for, special ones included; at least 260 (the bytes and the special tokens).
            Fewer result where the texts have fewer pairs.
        lowercase: Whether to lower the case of texts.
        model: The trained model, as the JSON text of the `tokenizers` library; `None` is for a tokenizer yet to be trained.

    Raises:
        ConfigurationError: `vocab_size` is below 260, or `model` is no model.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build({"name": "bpe", "vocab_size": 262}).train(["low lower lowest"] * 2)
        >>> tokenizer.tokens(tokenizer.encode("lowly"))
        ['low', 'l', 'y']
        >>> tokenizer.decode(tokenizer.encode("lowly ≤ 안녕"))
        'lowly ≤ 안녕'
    """

    def __init__(self, *, vocab_size: int = 8000, lowercase: bool = False, model: str | None = None) -> None:
        if vocab_size < _SMALLEST:
            raise ConfigurationError(f"tokenizer 'bpe': vocab_size must be at least {_SMALLEST}, but is {vocab_size}")
        self.vocab_size = vocab_size
        self.lowercase = lowercase
        self._json = model
        try:
            self._model: hf.Tokenizer | None = None if model is None else hf.Tokenizer.from_str(model)
        except Exception as error:  # the library raises nothing narrower
            raise ConfigurationError(f"tokenizer 'bpe': model must be the JSON text of a trained model ({error})") from error

    @property
    @override
    def spec(self) -> dict[str, Any]:
        return {"name": "bpe", "vocab_size": self.vocab_size, "lowercase": self.lowercase, "model": self._json}

    @property
    @override
    def trained(self) -> bool:
        return self._model is not None

    @override
    def train(self, texts: Iterable[str]) -> Self:
        model = hf.Tokenizer(models.BPE())
        if self.lowercase:
            model.normalizer = normalizers.Lowercase()
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size - _SHIFT, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
        model.train_from_iterator(texts, trainer)
        return type(self)(vocab_size=self.vocab_size, lowercase=self.lowercase, model=model.to_str())

    @override
    def encode(self, text: str) -> list[int]:
        return [i + _SHIFT for i in self._trained_model().encode(text).ids]

    @override
    def decode(self, ids: Iterable[int]) -> str:
        return self._trained_model().decode([i - _SHIFT for i in self._content(ids) if i != self.unk_id])

    @override
    def tokens(self, ids: Iterable[int]) -> list[str]:
        model = self._trained_model()
        return [self.special_tokens[i] if i < _SHIFT else model.decode([i - _SHIFT]) for i in ids]

    def __len__(self) -> int:
        return _SHIFT if self._model is None else _SHIFT + self._model.get_vocab_size()

    def _trained_model(self) -> hf.Tokenizer:
        if self._model is None:
            raise self._not_trained()
        return self._model
