"""Batches of texts with labels."""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor

from attnkit.data.batching import Sequences, TokenExamples
from attnkit.data.loading import Share


class LabelledBatch(TypedDict, total=False):
    """A batch of texts, with labels if all texts of the split have one, and with the texts themselves except in training.

    A filler (`attnkit.data.loading.Share`) has tokens, but no label and no text.
    """

    example: Tensor  # [B] int64: the index of each text; -1 for a filler
    tokens: Tensor  # [B, T] int64: bos, tokens, eos, padding
    label: Tensor  # [B]: int64, the class, or float32, a number; [0] for a filler
    text: list[str]


class LabelledExamples(TokenExamples):
    """Encoded texts and their labels.

    Args:
        tokens: The texts.
        labels: The labels [N]: int64 classes or float32 numbers; `None` without labels.
        texts: The text of each example; `None` in training, where batches are tensors only.

    Example:
        >>> examples = LabelledExamples(tokens=Sequences([[1, 5, 2], [1, 2]]), labels=torch.tensor([1, 0]), texts=None)
        >>> examples[Share(batch=[1, 0])]["label"]
        tensor([0, 1])
    """

    def __init__(self, *, tokens: Sequences, labels: Tensor | None, texts: Sequence[str] | None) -> None:
        super().__init__(tokens, texts)
        self.labels = labels

    def __getitem__(self, share: Share) -> LabelledBatch:
        indices, (length, _) = share.rows, self.longest(share)
        batch: LabelledBatch = {"example": share.example(indices), "tokens": self.tokens.padded(indices, length)}
        answered = indices[:0] if share.is_filler else indices
        if self.labels is not None:
            batch["label"] = self.labels[torch.as_tensor(answered, dtype=torch.int64)]
        if self.texts is not None:
            batch["text"] = [self.texts[i] for i in answered]
        return batch
