"""What a tokenizer does not know, in words for its user."""

import unicodedata
from collections import Counter
from collections.abc import Iterable

MOST = 8  # symbols that are listed


class UnknownTokens(UserWarning):
    """A text has parts that the vocabulary of a tokenizer lacks: the model sees `<unk>` in their place."""


def listed(symbols: Iterable[str]) -> str:
    """Return the distinct symbols, the most frequent first, at most `MOST` of them; single characters with their code points.

    Example:
        >>> listed(["국", "한", "국", "word"])
        "'국' (U+AD6D), '한' (U+D55C), 'word'"
        >>> listed(["\\u0301"])  # a mark that would sit on the quote
        "'◌́' (U+0301)"
        >>> listed(map(str, range(99)))
        "'0' (U+0030), '1' (U+0031), '2' (U+0032), '3' (U+0033), '4' (U+0034), '5' (U+0035), '6' (U+0036), '7' (U+0037) and 91 others"
    """
    counts = Counter(symbols)
    shown = [_shown(symbol) for symbol, _ in counts.most_common(MOST)]
    return ", ".join(shown) + (f" and {len(counts) - MOST} others" if len(counts) > MOST else "")


def _shown(symbol: str) -> str:
    if len(symbol) != 1:
        return repr(symbol if len(symbol) <= 24 else f"{symbol[:23]}…")
    mark = "◌" if unicodedata.combining(symbol) else ""
    return f"{mark + symbol!r} (U+{ord(symbol):04X})"
