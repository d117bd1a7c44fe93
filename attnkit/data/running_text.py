"""The base class of framings of running text."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from attnkit.corpus.base import Part, TextCorpus
from attnkit.data.base import PARTS, Batch, Split, TokenizedFraming
from attnkit.data.cache import cached_of
from attnkit.data.config import TokensConfig
from attnkit.data.packing import PackedText, Piece, pieces
from attnkit.data.summary import Summary
from attnkit.registry import ConfigurationError, TokenizerSpec, require_at_least
from attnkit.tokenizer import Tokenizer
from attnkit.wording import adjective, counted

SAMPLE = 50_000_000  # maximum characters to train a tokenizer on


@dataclass(frozen=True, kw_only=True)
class RunningTextConfig(TokensConfig):
    """The options of framings of running text.

    Args:
        context: Tokens in a window.
    """

    context: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, context=self.context)


class RunningText(TokenizedFraming[Batch]):
    """The base class of framings of running text: the text is one long sequence of ids."""

    takes: ClassVar = TextCorpus
    corpus: TextCorpus
    field: ClassVar[str] = "text"  # the field that holds the inputs for prediction
    unknown_note: ClassVar[str] = ", which cost no bits, so bits per character are underestimated"

    def __init__(self, config: RunningTextConfig, tokenizer: TokenizerSpec) -> None:
        super().__init__(config, tokenizer)
        self._packed: dict[Part, PackedText] = {}

    @property
    def token_counts(self) -> list[int]:
        """The number of occurrences of each token of the vocabulary in the training text."""
        return [int(n) for n in np.bincount(self.packed("train").ids, minlength=len(self.tokenizer))]

    def pieces(self, part: Part) -> Iterator[Piece]:
        """Yield a split of the text piece by piece, the same on each call; raise a `ConfigurationError` if it is empty."""
        empty = True
        for document in self.corpus.documents(part):
            for piece in pieces(document):
                yield piece
                empty = False
        if empty:
            bad = self.corpus.bad_rows[part]
            skipped = f". The first skipped row: {bad.first}" if bad else ""
            raise ConfigurationError(f"the {adjective(part)} text is empty or only white space{skipped}")

    @override
    def read(self, part: Split) -> Any:
        return self.prediction_inputs(self.field) if part == "predict" else self.packed(part)

    def packed(self, part: Part) -> PackedText:
        """Return a split of the text as token ids, encoded once and then read from the cache; raises like `pieces`."""
        if part not in self._packed:
            tokenizer = self.tokenizer
            text = cached_of(
                "packed",
                lambda: (f"{piece.ends:d}{piece.text}" for piece in self.pieces(part)),
                ["NFC", tokenizer.spec],
                code=[type(tokenizer), PackedText],
                write=lambda folder, cells: PackedText.write(folder, (Piece(c[1:], c[0] == "1") for c in cells), tokenizer),
                read=lambda folder: PackedText(folder, len(tokenizer)).checked(),
            )
            self._packed[part] = text
            self.summaries.say(self._summary(part, text))
        return self._packed[part]

    def _summary(self, part: Part, text: PackedText) -> Summary:
        documents = text.count(Tokenizer.eos_id) - 1
        tokens = len(text) - documents
        summary = Summary(part, f"{counted(tokens, 'token')} in {counted(documents, 'document')}")
        summary.tokens, summary.unknown = tokens, text.count(Tokenizer.unk_id)
        if part == "validation" and "train" in self._packed:
            training = set(self._packed["train"].documents())
            summary.note(sum(document in training for document in text.documents()), "also in the training data")
        summary.unknown_note = "" if part == "train" else self.unknown_note
        return summary

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._packed = {}

    @override
    def prepare_data(self) -> None:
        """Encode the required splits in one process; the others read them from the cache."""
        for part in PARTS.get(self.trainer.state.fn or "", ()) if self.trainer else ():
            if self.corpus.has(part):
                self.packed(part)

    @override
    def training_texts(self) -> Iterator[str]:
        step = max(1, math.ceil(sum(len(piece.text) for piece in self.pieces("train")) / SAMPLE))
        return (piece.text for piece in islice(self.pieces("train"), 0, None, step))
