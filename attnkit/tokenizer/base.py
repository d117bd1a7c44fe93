"""What every tokenizer does, and the vocabulary of those that split a text into symbols."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from typing_extensions import override

from attnkit.registry import ConfigurationError


class Tokenizer(ABC):
    """Turns texts into token ids and back.

    The ids of the special tokens are the same in every tokenizer: pad 0, bos 1, eos 2, unk 3; its own tokens follow.
    A tokenizer is *trained* when it has a vocabulary, and only then does it encode.
    """

    special_tokens: ClassVar[tuple[str, ...]] = ("<pad>", "<bos>", "<eos>", "<unk>")
    pad_id: ClassVar[int] = 0
    bos_id: ClassVar[int] = 1
    eos_id: ClassVar[int] = 2
    unk_id: ClassVar[int] = 3

    @property
    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Plain data from which `attnkit.tokenizers.build` makes an equal tokenizer, vocabulary included."""

    @property
    @abstractmethod
    def trained(self) -> bool:
        """Whether there is a vocabulary to encode with."""

    @abstractmethod
    def train(self, texts: Iterable[str]) -> Self:
        """Return a new tokenizer of the same settings whose vocabulary is learned from `texts`; this one stays as it is."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens around them; what is not in the vocabulary becomes `unk_id`."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`: it ends before the first eos, and leaves out pad and bos."""

    @abstractmethod
    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return one label per id, special tokens included, as for the axes of a plot."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of ids, special ones included."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({f'{len(self)} tokens' if self.trained else 'not trained'})"

    def _not_trained(self) -> ConfigurationError:
        return ConfigurationError(
            f"the {self.spec['name']} tokenizer is not trained: call .train(texts), or build it from the .spec of a trained one"
        )

    def _content(self, ids: Iterable[int]) -> list[int]:
        content: list[int] = []
        for i in map(int, ids):
            if i == self.eos_id:
                break
            if i not in (self.pad_id, self.bos_id):
                content.append(i)
        return content


class SymbolTokenizer(Tokenizer):
    """A tokenizer that splits a text into symbols and looks each one up.

    Args:
        tokens: The vocabulary, special tokens left out; `None` is for a tokenizer yet to be trained.
        lowercase: Whether to lower the case of texts.
        min_count: How often a symbol must occur in the training texts to enter the vocabulary.

    Raises:
        ConfigurationError: A token is empty, or is listed twice.
    """

    registry_name: ClassVar[str]

    def __init__(self, *, tokens: list[str] | None = None, lowercase: bool = False, min_count: int = 1) -> None:
        self.lowercase = lowercase
        self.min_count = min_count
        self._symbols = None if tokens is None else list(tokens)
        self._labels = [*self.special_tokens, *(tokens or [])]
        self._ids = {token: i for i, token in enumerate(tokens or [], start=len(self.special_tokens))}
        if wrong := [t for t, n in Counter(tokens).items() if n > 1 or not t]:
            raise ConfigurationError(f"the tokens of a tokenizer must be distinct and not empty, but {wrong[0]!r} is not")

    @staticmethod
    @abstractmethod
    def split(text: str) -> Sequence[str]:
        """Return the symbols of a text."""

    @staticmethod
    @abstractmethod
    def join(symbols: Iterable[str]) -> str:
        """Return the text of the symbols."""

    @property
    @override
    def spec(self) -> dict[str, Any]:
        return {"name": self.registry_name, "tokens": self._symbols, "lowercase": self.lowercase, "min_count": self.min_count}

    @property
    @override
    def trained(self) -> bool:
        return self._symbols is not None

    @override
    def train(self, texts: Iterable[str]) -> Self:
        counts = Counter(symbol for text in texts for symbol in self.split(self._normal(text)))
        tokens = sorted(symbol for symbol, n in counts.items() if n >= self.min_count)
        return type(self)(tokens=tokens, lowercase=self.lowercase, min_count=self.min_count)

    @override
    def encode(self, text: str) -> list[int]:
        if not self.trained:
            raise self._not_trained()
        return [self._ids.get(symbol, self.unk_id) for symbol in self.split(self._normal(text))]

    @override
    def decode(self, ids: Iterable[int]) -> str:
        return self.join(self.tokens(self._content(ids)))

    @override
    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._labels[i] for i in ids]

    def __len__(self) -> int:
        return len(self._labels)

    def _normal(self, text: str) -> str:
        return text.lower() if self.lowercase else text
