"""One token per word."""

from collections.abc import Iterable, Sequence

from typing_extensions import override

from attnkit.registry import tokenizers
from attnkit.tokenizer.base import SymbolTokenizer


@tokenizers.register("word")
class Word(SymbolTokenizer):
    """One token per word. Words are separated by white space, so phonemes such as `HH AH0 L OW1` are words too.

    Decoding joins words with single spaces, whatever the spacing of the original text.

    Args:
        tokens: The words of the vocabulary, or `None` for an untrained tokenizer.
        lowercase: Whether to convert texts to lower case.
        min_count: How often a word must occur in the training texts to enter the vocabulary. At 2 or more, the training texts contain
            unknown words, so the model learns to handle them.
        extra_tokens: Strings that are one token wherever they occur in a text, such as `<mask>`.
        normalization: Unicode normalisation form, applied to texts first: `NFC`, `NFD`, `NFKC`, `NFKD` or `none` (default: `NFC`; with
            `tokens`, `none`, since a spec without this argument predates it).

    Raises:
        ConfigurationError: A token is empty or listed twice.

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
