"""Messages about symbols outside a tokenizer's vocabulary."""

import unicodedata
from collections import Counter
from collections.abc import Iterable

MOST = 8  # symbols listed


class UnknownTokens(UserWarning):
    """A text has symbols outside the tokenizer's vocabulary: the model sees `<unk>` in their place."""


def listed(symbols: Iterable[str]) -> str:
    """List the distinct symbols, most frequent first and at most `MOST`, single characters with their code points.

    Example:
        >>> listed(["국", "한", "국", "word"])
        "'국' (U+AD6D), '한' (U+D55C), 'word'"
        >>> listed(["\\u0301"])  # a combining mark, shown on a dotted circle
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
