"""The interface of tokenizers, and the base class of those that split text into symbols."""

import re
import reprlib
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, ClassVar, Literal, Self, get_args

from typing_extensions import override

from attnkit.registry import ConfigurationError

Normalization = Literal["none", "NFC", "NFD", "NFKC", "NFKD"]
MASK = "<mask>"
"""The extra token that hides others."""


class Tokenizer(ABC):
    """Turns texts into token ids and back.

    The special tokens have the same ids in every tokenizer: pad 0, bos 1, eos 2, unk 3. The extra tokens follow, then the vocabulary.
    A tokenizer is *trained* once it has a vocabulary; before that, it cannot encode.

    Args:
        extra_tokens: Strings that are one token wherever they occur in a text, such as `<mask>`.
        normalization: Unicode normalisation form of texts, applied before encoding, or `none`. Extra tokens are not normalised.

    Attributes:
        extra_tokens: As given, in a tuple.
        normalization: As given.

    Raises:
        ConfigurationError: An extra token is empty, listed twice or the name of a special token, or the normalisation form is unknown.
    """

    special_tokens: ClassVar[tuple[str, ...]] = ("<pad>", "<bos>", "<eos>", "<unk>")
    pad_id: ClassVar[int] = 0
    bos_id: ClassVar[int] = 1
    eos_id: ClassVar[int] = 2
    unk_id: ClassVar[int] = 3
    extra_tokens: tuple[str, ...] = ()
    normalization: Normalization = "none"
    _joins_extra: ClassVar[str] = ""  # regular expression of the text that an extra token absorbs before it

    def __init__(self, *, extra_tokens: Sequence[str] | None = None, normalization: Normalization = "none") -> None:
        if normalization not in (forms := get_args(Normalization)):
            raise ConfigurationError(f"normalization must be one of {', '.join(forms)}, but is {normalization!r}")
        self.normalization = normalization
        self.extra_tokens = tuple(extra_tokens or ())
        if wrong := [t for t, n in Counter([*self.special_tokens, *self.extra_tokens]).items() if n > 1 or not t]:
            raise ConfigurationError(f"extra_tokens must be distinct, not empty and different from special tokens, but {wrong[0]!r} is not")
        longest_first = sorted(self.extra_tokens, key=len, reverse=True)
        self._extra = re.compile(f"{self._joins_extra}({'|'.join(map(re.escape, longest_first))})") if longest_first else None

    @property
    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Plain data from which `attnkit.tokenizers.build` builds an equal tokenizer, vocabulary included."""

    @property
    @abstractmethod
    def trained(self) -> bool:
        """Whether the tokenizer has a vocabulary."""

    @abstractmethod
    def train(self, texts: Iterable[str]) -> Self:
        """Return a new tokenizer with the same settings and a vocabulary learned from `texts`; this one does not change."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens around them; symbols outside the vocabulary become `unk_id`.

        Raises:
            ConfigurationError: The tokenizer is not trained, or the text has a lone surrogate; the message says where.
        """

    def between_ends(self, text: str) -> list[int]:
        """Return the ids of a text, between bos and eos."""
        return [self.bos_id, *self.encode(text), self.eos_id]

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids` before the first eos, without pad and bos; an `IndexError` names an id without a token."""

    @abstractmethod
    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return one label per id, special tokens included, such as for the axes of a plot."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of ids, special tokens included."""

    def normalized(self, text: str) -> str:
        """Return a text in the tokenizer's normalisation form.

        Example:
            >>> import attnkit
            >>> decomposed = "\u1112\u1161\u11ab"  # 한 as three letters
            >>> attnkit.tokenizers.build("character").normalized(decomposed)
            '한'
        """
        return text if self.normalization == "none" else unicodedata.normalize(self.normalization, text)

    def symbols(self, text: str) -> list[str]:
        """Return the symbol of each id of `encode(text)`: its label, or for an unknown token the text that it replaces."""
        return self.tokens(self.encode(text))

    def unknown(self, text: str) -> list[str]:
        """Return the parts of a text that become `unk_id`, in order.

        Example:
            >>> import attnkit
            >>> attnkit.tokenizers.build("word").train(["so good"]).unknown("so bad so very bad")
            ['bad', 'very', 'bad']
        """
        return [symbol for symbol, i in zip(self.symbols(text), self.encode(text), strict=True) if i == self.unk_id]

    def id_of(self, token: str) -> int:
        """Return the id of a special or extra token.

        Raises:
            ConfigurationError: There is no such token; the message says how to add it in a recipe.

        Example:
            >>> import attnkit
            >>> attnkit.tokenizers.build({"name": "character", "extra_tokens": ["<mask>"]}).id_of("<mask>")
            4
        """
        named = [*self.special_tokens, *self.extra_tokens]
        if token not in named:
            listed = ", ".join([*self.extra_tokens, token])
            raise ConfigurationError(f"the tokenizer has no token {token!r}. Train one with it: data.tokenizer.extra_tokens: [{listed}]")
        return named.index(token)

    def begins_word(self, ids: Iterable[int]) -> list[bool]:
        """Return whether each token begins a word regardless of the token before it. (The first token of a text always begins one.)

        White space belongs to the word that follows, a punctuation mark begins a word, and special and extra tokens are words.
        """
        return [not label[:1].isalnum() for label in self.tokens(ids)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({f'{len(self)} tokens' if self.trained else 'not trained'})"

    def _not_trained(self) -> ConfigurationError:
        return ConfigurationError(
            f"the {self.spec['name']} tokenizer is not trained: call .train(texts), or build it from the .spec of a trained one"
        )

    def _with(self, **vocabulary: Any) -> Self:
        """Return a new tokenizer with the same settings and the vocabulary in these arguments."""
        return type(self)(**{name: value for name, value in self.spec.items() if name != "name"} | vocabulary)

    def _pieces(self, text: str) -> list[str]:
        """Split a text at its extra tokens: these have odd indices; normalised text, possibly empty, has even ones."""
        if self._extra is None and text.isascii():  # ASCII has only one form; checking it first saves most of the time
            return [text]
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"the text {reprlib.repr(text)} has a lone surrogate ({text[error.start]!r}) at position {error.start}, so it was "
                "not read as UTF-8"
            ) from error
        pieces = [text] if self._extra is None else self._extra.split(text)
        return [piece if i % 2 else self.normalized(piece) for i, piece in enumerate(pieces)]

    def _content(self, ids: Iterable[int]) -> list[int]:
        return [i for i in self._known(takewhile(lambda i: i != self.eos_id, map(int, ids))) if i not in (self.pad_id, self.bos_id)]

    def _known(self, ids: Iterable[int]) -> list[int]:
        """Return ids in a list; raise an `IndexError` that names one without a token."""
        found, size = [int(i) for i in ids], len(self)
        if found and not 0 <= min(found) <= max(found) < size:
            wrong = next(i for i in found if not 0 <= i < size)
            raise IndexError(f"the id {wrong} is outside of the vocabulary, whose ids are 0 to {size - 1}")
        return found


def normalization_of(given: Normalization | None, *, trained: bool) -> Normalization:
    """Return the normalisation form of a tokenizer whose spec says `given`: NFC by default.

    The spec of a trained tokenizer always names its form, unless it predates this option and so has none.
    """
    if given is not None:
        return given
    return "none" if trained else "NFC"


class SymbolTokenizer(Tokenizer):
    """A tokenizer that splits text into symbols and looks up each one.

    Args:
        tokens: The symbols of the vocabulary, or `None` for an untrained tokenizer.
        lowercase: Whether to convert texts to lower case.
        min_count: Minimum number of occurrences in the training texts for a symbol to enter the vocabulary.
        extra_tokens: Strings that are one token wherever they occur in a text, such as `<mask>`.
        normalization: Unicode normalisation form, applied to texts first: `NFC`, `NFD`, `NFKC`, `NFKD` or `none` (default: `NFC`; with
            `tokens`, `none`, since a spec without this argument predates it).

    Raises:
        ConfigurationError: A token is empty or listed twice.
    """

    registry_name: ClassVar[str]

    def __init__(
        self,
        *,
        tokens: list[str] | None = None,
        lowercase: bool = False,
        min_count: int = 1,
        extra_tokens: list[str] | None = None,
        normalization: Normalization | None = None,
    ) -> None:
        super().__init__(extra_tokens=extra_tokens, normalization=normalization_of(normalization, trained=tokens is not None))
        self.lowercase = lowercase
        self.min_count = min_count
        self._symbols = None if tokens is None else list(tokens)
        own = [*self.extra_tokens, *(tokens or [])]
        self._labels = [*self.special_tokens, *own]
        self._ids = {token: i for i, token in enumerate(own, start=len(self.special_tokens))}
        if wrong := [t for t, n in Counter(own).items() if n > 1 or not t]:
            raise ConfigurationError(f"the tokens of a tokenizer must be distinct and not empty, but {wrong[0]!r} is not")

    @abstractmethod
    def split(self, text: str) -> Sequence[str]:
        """Return the symbols of a text."""

    @staticmethod
    @abstractmethod
    def join(symbols: Iterable[str]) -> str:
        """Return the text of some symbols."""

    @property
    @override
    def spec(self) -> dict[str, Any]:
        return {
            "name": self.registry_name,
            "tokens": self._symbols,
            "lowercase": self.lowercase,
            "min_count": self.min_count,
            "extra_tokens": list(self.extra_tokens) or None,
            "normalization": self.normalization,
        }

    @property
    @override
    def trained(self) -> bool:
        return self._symbols is not None

    @override
    def train(self, texts: Iterable[str]) -> Self:
        counts = Counter(symbol for text in texts for symbol in self.symbols(text))
        tokens = sorted(symbol for symbol, n in counts.items() if n >= self.min_count and symbol not in self.extra_tokens)
        return self._with(tokens=tokens)

    @override
    def encode(self, text: str) -> list[int]:
        if not self.trained:
            raise self._not_trained()
        find, unknown = self._ids.get, self.unk_id
        return [find(symbol, unknown) for symbol in self.symbols(text)]

    @override
    def decode(self, ids: Iterable[int]) -> str:
        return self.join(self.tokens(self._content(ids)))

    @override
    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._labels[i] for i in self._known(ids)]

    def __len__(self) -> int:
        return len(self._labels)

    @override
    def symbols(self, text: str) -> list[str]:
        first, *others = self._pieces(text)
        symbols = list(self.split(first.lower() if self.lowercase else first))
        for i, piece in enumerate(others, start=1):
            symbols += [piece] if i % 2 else self.split(piece.lower() if self.lowercase else piece)
        return symbols
