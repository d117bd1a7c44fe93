# https://arxiv.org/abs/1609.08144
"""WordPiece."""

from collections.abc import Iterable
from typing import Any, Self

import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from typing_extensions import override

from attnkit.registry import ConfigurationError, require_at_least, tokenizers
from attnkit.tokenizer.base import Normalization, normalization_of
from attnkit.tokenizer.library import LibraryTokenizer

PREFIX = "##"
LONGEST = 100  # characters of a word; a longer one is unknown
UNKNOWN = "\0"  # the model's name for unknown words; no text has this character once it is cleaned


@tokenizers.register("wordpiece")
class WordPiece(LibraryTokenizer):
    """The longest pieces of words in a vocabulary, from left to right, as BERT reads texts.

    Texts are split at white space and around each punctuation mark and each Chinese character. A piece that continues a word is written
    with `##`. A word that cannot be cut into pieces of the vocabulary is unknown as a whole. Decoding joins words with single spaces,
    none before a punctuation mark. Special tokens are not parsed: `[SEP]` in a text is ordinary text. Trained and run by the `tokenizers`
    library.

    Paper: Wu et al. 2016, https://arxiv.org/abs/1609.08144

    Args:
        tokens: The pieces of the vocabulary, or `None` for an untrained tokenizer. Ids are counted from the first that is neither special
            nor extra.
        vocab_size: Target number of ids, special and extra tokens included: at least the number of these. There are more if the texts have
            more characters, and fewer if they have too few pairs.
        lowercase: Whether to convert texts to lower case and to remove accents, as for BERT's `uncased` models.
        extra_tokens: Strings that are one token wherever they occur in a text, such as `<mask>`.
        normalization: Unicode normalisation form, applied to texts first: `NFC`, `NFD`, `NFKC`, `NFKD` or `none` (default: `NFC`; with
            `tokens`, `none`).

    Raises:
        ConfigurationError: `vocab_size` is too small, or a token is empty or listed twice.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build({"name": "wordpiece", "vocab_size": 24, "lowercase": True}).train(["low lower lowest"] * 2)
        >>> tokenizer.tokens(tokenizer.encode("Slower, lowest!"))
        ['<unk>', '<unk>', 'lowest', '<unk>']
        >>> tokenizer.tokens(tokenizer.encode("lows"))
        ['low', '##s']
    """

    def __init__(
        self,
        *,
        tokens: list[str] | None = None,
        vocab_size: int = 8000,
        lowercase: bool = False,
        extra_tokens: list[str] | None = None,
        normalization: Normalization | None = None,
    ) -> None:
        super().__init__(extra_tokens=extra_tokens, normalization=normalization_of(normalization, trained=tokens is not None))
        self._named = [*self.special_tokens, *self.extra_tokens]
        require_at_least(len(self._named), vocab_size=vocab_size)
        self.vocab_size, self.lowercase = vocab_size, lowercase
        self._pieces_of_words = None if tokens is None else list(tokens)
        self._labels = [*self._named, *(tokens or ())]
        if tokens is None:
            self._model = None
            return
        vocabulary = {token: i for i, token in enumerate((UNKNOWN, *tokens))}
        if len(vocabulary) <= len(tokens) or "" in vocabulary:
            raise ConfigurationError(f"the tokens of a tokenizer must be distinct, not empty and different from {UNKNOWN!r}")
        self._model = self._tokenizer(models.WordPiece(vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=LONGEST))

    @property
    @override
    def spec(self) -> dict[str, Any]:
        return {
            "name": "wordpiece",
            "tokens": self._pieces_of_words,
            "vocab_size": self.vocab_size,
            "lowercase": self.lowercase,
            "extra_tokens": list(self.extra_tokens) or None,
            "normalization": self.normalization,
        }

    @override
    def train(self, texts: Iterable[str]) -> Self:
        model, pieces = self._tokenizer(models.WordPiece(unk_token=UNKNOWN)), [piece for text in texts for piece in self._pieces(text)[::2]]
        first = [UNKNOWN, *sorted(f"{PREFIX}{character}" for character in _continuing(model, pieces))]  # else their order would be random
        size = self.vocab_size - len(self._named) + 1
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, continuing_subword_prefix=PREFIX, show_progress=False)
        model.train_from_iterator(pieces, trainer)
        vocabulary = model.get_vocab()
        return self._with(tokens=sorted(vocabulary.keys() - {UNKNOWN}, key=vocabulary.__getitem__))

    @override
    def _ours(self, ids: Iterable[int]) -> list[int]:
        first = len(self._named) - 1  # 0 is unknown
        return [first + token if token else self.unk_id for token in ids]

    @override
    def symbols(self, text: str) -> list[str]:
        model = self._trained_model()
        symbols: list[str] = []
        for i, piece in enumerate(self._pieces(text)):
            found = None if i % 2 else model.encode(piece)
            symbols += [piece] if found is None else [
                label if token else piece[slice(*place)] for token, label, place in zip(found.ids, found.tokens, found.offsets, strict=True)
            ]  # fmt: skip
        return symbols

    @override
    def decode(self, ids: Iterable[int]) -> str:
        decoder = decoders.WordPiece(prefix=PREFIX, cleanup=True)
        text: str = decoder.decode(self.tokens(self._content(ids)))
        return text

    @override
    def tokens(self, ids: Iterable[int]) -> list[str]:
        self._trained_model()
        return [self._labels[i] for i in self._known(ids)]

    @override
    def begins_word(self, ids: Iterable[int]) -> list[bool]:
        return [not token.startswith(PREFIX) for token in self.tokens(ids)]

    def __len__(self) -> int:
        return len(self._labels)

    def _tokenizer(self, model: models.WordPiece) -> hf.Tokenizer:
        """Return the pipeline that runs a model, otherwise configured by this tokenizer's settings alone."""
        tokenizer = hf.Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer


def _continuing(model: hf.Tokenizer, texts: Iterable[str]) -> set[str]:
    """Return the characters that occur within words."""
    words = (word for text in texts for word, _ in model.pre_tokenizer.pre_tokenize_str(model.normalizer.normalize_str(text)))
    return {character for word in words for character in word[1:]}
