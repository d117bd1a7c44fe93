"""One token per word."""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

from typing_extensions import override

from attnkit.registry import tokenizers
from attnkit.tokenizer.base import Normalization, SymbolTokenizer


@tokenizers.register("word")
class Word(SymbolTokenizer):
    """One token per word. Words are separated by white space, so phonemes such as `HH AH0 L OW1` are words too.

    Decoding joins words with single spaces, whatever the spacing of the original text.

    Args:
        min_count: Minimum number of occurrences in the training texts for a word to enter the vocabulary. At 2 or more, the training texts
            may contain unknown words, which the model learns to handle.
        punctuation: `attached` to its word, or `apart`: each punctuation mark or sign at the start or the end of a word is a separate
            token, so `God` and `God,` contain the same word. Marks inside a word (`don't`) stay.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build("word").train(["HH EH L OW", "L OW"])
        >>> tokenizer.encode("L  OW XX")
        [6, 7, 3]
        >>> tokenizer.decode([6, 7, 3])
        'L OW <unk>'
    """

    registry_name = "word"

    def __init__(
        self,
        *,
        tokens: list[str] | None = None,
        lowercase: bool = False,
        min_count: int = 1,
        extra_tokens: list[str] | None = None,
        normalization: Normalization | None = None,
        punctuation: Literal["attached", "apart"] = "attached",
    ) -> None:
        super().__init__(tokens=tokens, lowercase=lowercase, min_count=min_count, extra_tokens=extra_tokens, normalization=normalization)
        self.punctuation = punctuation

    @property
    @override
    def spec(self) -> dict[str, Any]:
        return {**super().spec, "punctuation": self.punctuation}

    @override
    def split(self, text: str) -> Sequence[str]:
        words = text.split()
        return words if self.punctuation == "attached" else [part for word in words for part in _parts(word)]

    @staticmethod
    @override
    def join(symbols: Iterable[str]) -> str:
        return " ".join(symbols)

    @override
    def begins_word(self, ids: Iterable[int]) -> list[bool]:
        return [True for _ in ids]


@lru_cache(maxsize=1 << 16)
def _parts(word: str) -> tuple[str, ...]:
    """Return the marks before a word, the word itself, and the marks after it.

    Example:
        >>> _parts("(don't!)"), _parts("...")
        (('(', "don't", '!', ')'), ('.', '.', '.'))
    """
    is_mark = [unicodedata.category(c)[0] in "PS" for c in word]
    if all(is_mark):
        return tuple(word)
    start, stop = is_mark.index(False), len(word) - is_mark[::-1].index(False)
    return (*word[:start], word[start:stop], *word[stop:])
