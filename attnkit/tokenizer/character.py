"""One token per character."""

from collections.abc import Iterable, Sequence

from typing_extensions import override

from attnkit.registry import tokenizers
from attnkit.tokenizer.base import SymbolTokenizer


@tokenizers.register("character")
class Character(SymbolTokenizer):
    """One token per character (Unicode code point), spaces included.

    Args:
        tokens: The characters of the vocabulary, or `None` for an untrained tokenizer.
        min_count: How often a character must occur in the training texts to enter the vocabulary.
        normalization: Unicode normalisation form, applied to texts first: `NFC`, `NFD`, `NFKC`, `NFKD` or `none` (default: `NFC`; with
            `tokens`, `none`, since a spec without this argument predates it).

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build("character").train(["ab", "ca"])
        >>> tokenizer.encode("cab!")
        [6, 4, 5, 3]
        >>> tokenizer.decode([1, 6, 4, 5, 2, 0])
        'cab'
        >>> attnkit.tokenizers.build(tokenizer.spec).encode("cab!")
        [6, 4, 5, 3]
    """

    registry_name = "character"

    @override
    def split(self, text: str) -> Sequence[str]:
        return text

    @staticmethod
    @override
    def join(symbols: Iterable[str]) -> str:
        return "".join(symbols)
