"""One token per word between white space."""

from collections.abc import Iterable, Sequence

from typing_extensions import override

from attnkit.registry import tokenizers
from attnkit.tokenizer.base import SymbolTokenizer


@tokenizers.register("word")
class Word(SymbolTokenizer):
    """One token per word; words are what white space separates, so phonemes such as `HH AH0 L OW1` are words too.

    Decoding puts one space between words, whatever the text had.

    Args:
        tokens: The words of the vocabulary; `None` is for a tokenizer yet to be trained.
        lowercase: Whether to lower the case of texts.
        min_count: How often a word must occur in the training texts to enter the vocabulary. With 2 or more there are
            unknown words in the training texts, so that a model learns what to make of them.
        extra_tokens: Tokens that stand for themselves, such as `<mask>`.
        normalization: The Unicode normalisation form that texts are brought into first: `NFC`, `NFD`, `NFKC`, `NFKD`, or `none` (default:
            `NFC`; with `tokens`, `none`, for such a spec is older than this argument).

    Raises:
        ConfigurationError: A token is empty, or is listed twice.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build("word").train(["HH EH L OW", "L OW"])
        >>> tokenizer.encode("L  OW XX")
        [6, 7, 3]
        >>> tokenizer.decode([6, 7, 3])
        'L OW <unk>'
    """

    registry_name = "word"

    @staticmethod
    @override
    def split(text: str) -> Sequence[str]:
        return text.split()

    @staticmethod
    @override
    def join(symbols: Iterable[str]) -> str:
        return " ".join(symbols)

    @override
    def begins_word(self, ids: Iterable[int]) -> list[bool]:
        return [True for _ in ids]
