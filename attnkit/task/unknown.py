"""Warns of characters in a user's texts that a model does not know."""

from collections.abc import Sequence

from lightning.pytorch.utilities import rank_zero_warn

from attnkit.tokenizer import Tokenizer
from attnkit.tokenizer.unknown import UnknownTokens, listed

WIDTH = 40  # characters of a text in a message


def warn_of_unknown(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Warn, once for all texts together, of characters that the tokenizer does not know.

    Example:
        >>> import attnkit, warnings
        >>> tokenizer = attnkit.tokenizers.build("character").train(["abc"])
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_of_unknown(tokenizer, ["abc", "a한", "b?"])
        >>> print(caught[0].message)
        unknown to the tokenizer, so that the model sees <unk> instead: '한' (U+D55C), '?' (U+003F) in 'a한' and 1 other text
    """
    found = [(text, symbols) for text in texts if (symbols := tokenizer.unknown(text))]
    if found:
        text, others = found[0][0], len(found) - 1
        shown = repr(text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…")
        more = f" and {others} other text{'s' * (others != 1)}" if others else ""
        every = listed(symbol for _, symbols in found for symbol in symbols)
        rank_zero_warn(f"unknown to the tokenizer, so that the model sees <unk> instead: {every} in {shown}{more}", category=UnknownTokens)
