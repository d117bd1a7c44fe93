"""One token per character."""

from collections.abc import Iterable, Sequence

from typing_extensions import override

from attnkit.registry import tokenizers
from attnkit.tokenizer.base import SymbolTokenizer


@tokenizers.register("character")
class Character(SymbolTokenizer):
    """One token per character (Unicode code point), spaces included.

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
