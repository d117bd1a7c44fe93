"""What every data module of texts with labels does: a tokenizer, classes, and batches by token budget."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, TypedDict

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from attnkit.data.bad_rows import OnBadRows
from attnkit.data.batching import BatchedExamples, Sequences, batch_loader
from attnkit.data.cache import trained
from attnkit.data.loading import Share
from attnkit.data.summary import Summaries, Summary, counted
from attnkit.registry import ConfigurationError, TokenizerSpec, nearest, tokenizers
from attnkit.tokenizer import Tokenizer

Labelled = tuple[str, str]  # a text, and its label as it is written: a class, or a number
Labels = Literal["class", "number"]


class LabelledBatch(TypedDict, total=False):
    """A batch of texts, with labels if all texts of the part have one, and with the texts themselves except in training.

    A filler (`attnkit.data.loading.Share`) has tokens, but no label and no text.
    """

    example: Tensor  # [B] int64: the index of each text; -1 for a filler
    tokens: Tensor  # [B, T] int64: bos, tokens, eos, padding
    label: Tensor  # [B]: int64, the class, or float32, a number; [0] for a filler
    text: list[str]


class LabelledExamples(BatchedExamples):
    """Encoded texts and their labels.

    Args:
        tokens: The texts.
        labels: The label of each: int64 classes, or float32 numbers [N]; `None`: there are none.
        texts: The text of each example; `None` in training, where batches are tensors only.

    Example:
        >>> examples = LabelledExamples(tokens=Sequences([[1, 5, 2], [1, 2]]), labels=torch.tensor([1, 0]), texts=None)
        >>> examples[Share(batch=[1, 0])]["label"]
        tensor([0, 1])
    """

    unit = "{} tokens"

    def __init__(self, *, tokens: Sequences, labels: Tensor | None, texts: Sequence[str] | None) -> None:
        self.tokens = tokens
        self.labels = labels
        self.texts = texts
        self.lengths = (tokens.lengths, np.zeros_like(tokens.lengths))

    @override
    def __len__(self) -> int:
        return len(self.tokens)

    @override
    def text(self, index: int) -> str | None:
        return self.texts[index] if self.texts else None

    def __getitem__(self, share: Share) -> LabelledBatch:
        indices, (length, _) = share.rows, self.longest(share)
        batch: LabelledBatch = {"example": share.example(indices), "tokens": self.tokens.padded(indices, length)}
        answered = indices[:0] if share.is_filler else indices
        if self.labels is not None:
            batch["label"] = self.labels[torch.as_tensor(answered, dtype=torch.int64)]
        if self.texts is not None:
            batch["text"] = [self.texts[i] for i in answered]
        return batch


class LabelledTextData(LightningDataModule, ABC):
    """Texts with labels, as batches of token ids. A subclass says where they come from.

    Args:
        labels: What labels are: `class`, names of classes, or `number`.
        classes: The names of the classes, in the order of their ids (default: those of the training texts, sorted).
        tokenizer: Spec of the tokenizer; an untrained one is trained on the training texts.
        batch_tokens: The budget of positions in a batch over all processes, padding included.
        max_length: Longer texts are truncated to this many tokens, bos and eos included, in every part; the summary of the part says how
            many are.
        seed: Of the order of the data, at least 0.
        num_workers: Processes that prepare batches (0: the main process does).
        on_bad_rows: What a subclass does with rows of files that cannot be used: `error` or `skip` (default: errors, without a choice).

    Attributes:
        image_shape: None: these are no images.
        summaries: What has been said of each split, and its bad rows.

    Raises:
        ConfigurationError: A number is out of range, or a class is listed twice.
    """

    image_shape: ClassVar[None] = None

    def __init__(
        self,
        *,
        labels: Labels,
        classes: list[str] | None,
        tokenizer: TokenizerSpec,
        batch_tokens: int,
        max_length: int,
        seed: int,
        num_workers: int,
        on_bad_rows: OnBadRows | None = None,
    ) -> None:
        super().__init__()
        limits = (("batch_tokens", batch_tokens, 1), ("max_length", max_length, 3), ("seed", seed, 0), ("num_workers", num_workers, 0))
        for name, value, least in limits:
            if value < least:
                raise ConfigurationError(f"{name} must be at least {least}, but is {value}")
        if classes is not None and (twice := [c for i, c in enumerate(classes) if c in classes[:i]]):
            raise ConfigurationError(f"classes must be distinct, but {twice[0]!r} is listed twice")
        self.labels, self._classes = labels, classes
        self._tokenizer: Tokenizer = tokenizers.build(tokenizer)
        self.summaries = Summaries(on_bad_rows)
        self.batch_tokens, self.max_length, self.seed, self.num_workers = batch_tokens, max_length, seed, num_workers

    @abstractmethod
    def labelled(self, part: Literal["train", "validation", "test"]) -> Sequence[Labelled]:
        """Return the texts of a part and their labels. An empty validation part is skipped."""

    def unlabelled(self) -> Sequence[str]:
        """Return texts without labels that are trained on besides, in a task that needs no labels. Tokenizers do not see them."""
        return []

    @abstractmethod
    def prediction_texts(self) -> Sequence[str]:
        """Return the texts to predict labels for."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The trained tokenizer."""
        return trained(self._tokenizer, lambda: (text for text, _ in self._training))

    @property
    def tokenizer_spec(self) -> dict[str, Any]:
        """Plain data that rebuilds the trained tokenizer."""
        return self.tokenizer.spec

    @cached_property
    def classes(self) -> list[str]:
        """The name of each class, by its id."""
        if self.labels == "number":
            raise ConfigurationError("the labels of these data are numbers; use task regression, or set data.labels to class")
        return self._classes if self._classes is not None else sorted({label for _, label in self._training})

    @override
    def state_dict(self) -> dict[str, Any]:
        classes = {"classes": self.classes} if self.labels == "class" else {}
        return {"tokenizer": self.tokenizer_spec, **classes}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.tokenizer = tokenizers.build(state_dict["tokenizer"])
        if "classes" in state_dict:
            self.classes = state_dict["classes"]

    @override
    def train_dataloader(self) -> DataLoader[LabelledBatch]:
        return self._loader("train", [*self._training, *((text, None) for text in self.unlabelled())], order="shuffled")

    @override
    def val_dataloader(self) -> DataLoader[LabelledBatch] | list[Any]:
        validation = self.labelled("validation")
        return self._loader("validation", validation, order="fixed") if validation else []

    @override
    def test_dataloader(self) -> DataLoader[LabelledBatch]:
        return self._loader("test", self.labelled("test"), order="fixed")

    @override
    def predict_dataloader(self) -> DataLoader[LabelledBatch]:
        return self._loader("predict", [(text, None) for text in self.prediction_texts()], order="given")

    @cached_property
    def _training(self) -> Sequence[Labelled]:
        return self.labelled("train")

    def _loader(
        self, part: str, examples: Sequence[tuple[str, str | None]], *, order: Literal["shuffled", "fixed", "given"]
    ) -> DataLoader[LabelledBatch]:
        encoded = [self.tokenizer.encode(text) for text, _ in examples]
        labelled = all(label is not None for _, label in examples)
        room = self.max_length - 2
        summary = Summary(part, counted(len(encoded), "text"))
        summary.note(sum(len(ids) > room for ids in encoded), f"truncated (longer than max_length={self.max_length})")
        for (text, _), ids in zip(examples, encoded, strict=True):
            summary.add(self.tokenizer, text, ids[:room])
        self.summaries.say(summary)
        return batch_loader(
            LabelledExamples(
                tokens=Sequences([[Tokenizer.bos_id, *ids[:room], Tokenizer.eos_id] for ids in encoded]),
                labels=self._label_tensor(part, [label for _, label in examples if label is not None]) if labelled else None,
                texts=None if part == "train" else [text for text, _ in examples],
            ),
            trainer=self.trainer,
            batch_tokens=self.batch_tokens,
            order=order,
            seed=self.seed,
            num_workers=self.num_workers,
        )

    def _label_tensor(self, part: str, labels: Sequence[str]) -> Tensor:
        if self.labels == "number":
            try:
                return torch.tensor([float(label) for label in labels])
            except ValueError as error:
                raise ConfigurationError(
                    f"a label of the {part} texts is no number: {error}; for classes set data.labels to class"
                ) from error
        ids = {name: i for i, name in enumerate(self.classes)}
        if unknown := [label for label in labels if label not in ids]:
            raise ConfigurationError(
                f"the {part} texts have the label {unknown[0]!r}, which is no class.{nearest(unknown[0], ids)} "
                f"Classes: {', '.join(self.classes)}."
            )
        return torch.tensor([ids[label] for label in labels])
