"""What every data module of running text does: one tokenizer, and windows of packed documents."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Literal

import numpy as np
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader
from typing_extensions import override

from attnkit.data.bad_rows import OnBadRows
from attnkit.data.batching import BatchedExamples, Sequences, batch_loader
from attnkit.data.cache import cached, fingerprint, trained
from attnkit.data.loading import Share, process_share, sampler_loader
from attnkit.data.packing import LanguageModelBatch, PackedText, Piece, Windows, WindowSampler
from attnkit.data.summary import Summaries, Summary, counted
from attnkit.registry import ConfigurationError, TokenizerSpec, tokenizers
from attnkit.tokenizer import Tokenizer

Part = Literal["train", "validation", "test"]

SAMPLE = 50_000_000  # characters that a tokenizer is trained on, at the most
_PARTS: dict[str, tuple[Part, ...]] = {"fit": ("train", "validation"), "validate": ("validation",), "test": ("test",)}


class LanguageModelData(LightningDataModule, ABC):
    """Running text, as windows of token ids. A subclass says where the text comes from.

    Args:
        tokenizer: Spec of the tokenizer; an untrained one is trained on the training text, or on an even sample of 50 million
            characters of it.
        context: Tokens in a window.
        stride: In evaluation, tokens between the starts of windows: less than `context` leaves each scored token more context before it
            (default: `context`, no overlap).
        batch_tokens: The budget of positions in a batch over all processes.
        document_mask: Whether batches say which document each token belongs to, so that attention stays inside it.
        seed: Of the order of the windows, at least 0.
        num_workers: Processes that prepare batches (0: the main process does).
        on_bad_rows: What a subclass does with rows of files that cannot be used: `error` or `skip` (default: errors, without a choice).

    Attributes:
        image_shape: None: these are no images.
        summaries: What has been said of each split, and its bad rows.

    Raises:
        ConfigurationError: A number is out of range.
    """

    image_shape: ClassVar[None] = None
    unknown_note: ClassVar[str] = ", which cost no bits: bits per character look better than they are"

    def __init__(
        self,
        *,
        tokenizer: TokenizerSpec,
        context: int,
        stride: int | None,
        batch_tokens: int,
        document_mask: bool,
        seed: int,
        num_workers: int,
        on_bad_rows: OnBadRows | None = None,
    ) -> None:
        super().__init__()
        for name, value, least in (("context", context, 1), ("seed", seed, 0), ("num_workers", num_workers, 0)):
            if value < least:
                raise ConfigurationError(f"{name} must be at least {least}, but is {value}")
        if stride is not None and not 1 <= stride <= context:
            raise ConfigurationError(f"stride must be from 1 to context={context}, but is {stride}")
        if batch_tokens < context:
            raise ConfigurationError(f"batch_tokens={batch_tokens} must be at least context={context}: a batch has one window or more")
        self.context = context
        self.stride = context if stride is None else stride
        self.batch_tokens = batch_tokens
        self.document_mask = document_mask
        self.seed = seed
        self.num_workers = num_workers
        self._tokenizer: Tokenizer = tokenizers.build(tokenizer)
        self.summaries = Summaries(on_bad_rows)
        self._packed: dict[Part, PackedText] = {}

    @abstractmethod
    def pieces(self, part: Part) -> Iterator[Piece]:
        """Yield a part of the text, piece by piece, the same at each call."""

    @abstractmethod
    def prompts(self) -> Sequence[str]:
        """Return the texts to continue in prediction."""

    def has(self, part: Part) -> bool:
        """Return whether there is such a part; without a validation part, there is no validation."""
        return True

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The trained tokenizer."""
        return trained(self._tokenizer, self._sample)

    @property
    def tokenizer_spec(self) -> dict[str, Any]:
        """Plain data that rebuilds the trained tokenizer."""
        return self.tokenizer.spec

    def packed(self, part: Part) -> PackedText:
        """Return a part of the text as token ids: encoded once, and found in the cache after that.

        Raises:
            ConfigurationError: There is no text.
        """
        if part not in self._packed:
            tokenizer = self.tokenizer
            text = cached(
                "packed",
                [tokenizer.spec, fingerprint(f"{piece.ends:d}{piece.text}" for piece in self.pieces(part))],
                write=lambda folder: PackedText.write(folder, self.pieces(part), tokenizer),
                read=lambda folder: PackedText(folder, len(tokenizer)).checked(),
            )
            if len(text) == 0:
                raise ConfigurationError(f"the {part} text is empty")
            self._packed[part] = text
            self.summaries.say(self._summary(part, text))
        return self._packed[part]

    def _summary(self, part: Part, text: PackedText) -> Summary:
        documents = text.count(Tokenizer.eos_id) - 1
        tokens = len(text) - documents
        summary = Summary(part, f"{counted(tokens, 'token')} in {counted(documents, 'document')}")
        summary.tokens, summary.unknown = tokens, text.count(Tokenizer.unk_id)
        summary.unknown_note = "" if part == "train" else self.unknown_note
        return summary

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer_spec}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.tokenizer = tokenizers.build(state_dict["tokenizer"])
        self._packed = {}

    @override
    def prepare_data(self) -> None:
        """Encode what is needed, in one process; the others find it in the cache."""
        for part in _PARTS.get(self.trainer.state.fn or "", ()) if self.trainer else ():
            if self.has(part):
                self.packed(part)

    @override
    def train_dataloader(self) -> DataLoader[LanguageModelBatch]:
        text = self.packed("train")
        if len(text) < self.context:
            raise ConfigurationError(
                f"the train text has {len(text)} tokens, which do not fill a window of context={self.context}: lower it"
            )
        return self._window_loader(text, stride=None)

    @override
    def val_dataloader(self) -> DataLoader[LanguageModelBatch] | list[Any]:
        return self._evaluation_loader("validation") if self.has("validation") else []

    @override
    def test_dataloader(self) -> DataLoader[LanguageModelBatch]:
        return self._evaluation_loader("test")

    @override
    def predict_dataloader(self) -> DataLoader[LanguageModelBatch]:
        prompts = self.prompts()
        self.summaries.say(Summary.of_texts("predict", self.tokenizer, prompts))
        return batch_loader(
            Prompts(prompts, self.tokenizer),
            trainer=self.trainer,
            batch_tokens=self.batch_tokens,
            order="given",
            seed=self.seed,
            num_workers=self.num_workers,
        )

    def _evaluation_loader(self, part: Part) -> DataLoader[LanguageModelBatch]:
        return self._window_loader(self.packed(part), stride=self.stride)

    def _window_loader(self, text: PackedText, *, stride: int | None) -> DataLoader[LanguageModelBatch]:
        windows = Windows(text, context=self.context, documents=self.document_mask, counts=stride is not None)
        size = self.batch_tokens // windows.context
        sampler = WindowSampler(windows, batch_size=size, stride=stride, seed=self.seed, **process_share(self.trainer))
        return sampler_loader(windows, sampler, trainer=self.trainer, num_workers=self.num_workers)

    def _sample(self) -> Iterator[str]:
        step = max(1, math.ceil(sum(len(piece.text) for piece in self.pieces("train")) / SAMPLE))
        return (piece.text for piece in islice(self.pieces("train"), 0, None, step))


class Prompts(BatchedExamples):
    """Texts to continue.

    Args:
        texts: The texts.
        tokenizer: Encodes them; bos comes first, as at the start of a document.
    """

    unit = "{} tokens"

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer) -> None:
        self.texts = texts
        self.tokens = Sequences([[Tokenizer.bos_id, *tokenizer.encode(text)] for text in texts])
        self.lengths = (self.tokens.lengths, np.zeros_like(self.tokens.lengths))

    @override
    def __len__(self) -> int:
        return len(self.texts)

    @override
    def text(self, index: int) -> str:
        return self.texts[index]

    def __getitem__(self, share: Share) -> LanguageModelBatch:
        return {
            "example": share.example(share.rows),
            "tokens": self.tokens.padded(share.rows, self.longest(share)[0]),
            "text": [] if share.is_filler else [self.texts[i] for i in share.rows],
        }
