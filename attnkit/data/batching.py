"""Batches of similar cost: examples of similar length, up to a budget of positions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from attnkit.data.loading import BatchSampler, Integers, Share
from attnkit.registry import ConfigurationError
from attnkit.strategy.sharing import DataShare
from attnkit.tokenizer.base import Tokenizer

Order = Literal["shuffled", "fixed", "given"]
"""The order of the batches of an epoch: for training, evaluation and prediction, respectively."""

_BANDS = (1, 2, 3, 4, 6, 8)  # candidate widths of bands of source lengths; 1 is best if every length has many examples


class Seq2SeqBatch(TypedDict, total=False):
    """A batch for training (`src`, `tgt`) or evaluation (all fields; without `tgt` in prediction)."""

    example: Tensor  # [B] int64: the index of each example; -1 for a filler, see `attnkit.data.loading.Share`
    src: Tensor  # [B, S] int64: tokens, eos, padding; or images [B, C, H, W], or frames [B, S, F], float32
    src_mask: Tensor  # [B, S] bool, True = real frame; only for frames
    tgt: Tensor  # [B, T] int64: bos, tokens, eos, padding
    source: list[str]
    references: list[list[str]]  # every acceptable target of each source, the canonical one first; none in prediction


class Sequences:
    """Many sequences of ids in one flat tensor, so that making a batch is a single gather.

    Args:
        sequences: Ids, at least one per sequence.

    Example:
        >>> Sequences([[5, 2], [6, 7, 8, 2], [2]]).padded([0, 1])
        tensor([[5, 2, 0, 0],
                [6, 7, 8, 2]])
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
        total = int(self.lengths.sum())
        self._flat = torch.from_numpy(np.fromiter(chain.from_iterable(sequences), dtype=np.int32, count=total))
        self._lengths = torch.from_numpy(self.lengths)
        self._starts = self._lengths.cumsum(0) - self._lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def content(self) -> list[Any]:
        """Return the arrays that hold the sequences."""
        return [self.lengths, self._flat]

    def padded(self, indices: Sequence[int], length: int | None = None) -> Tensor:
        """Return the chosen sequences as int64 [B, L], padded with 0 to `length` L (default: the longest of them)."""
        index = torch.as_tensor(indices)
        lengths = self._lengths[index].unsqueeze(1)  # [B, 1]
        columns = torch.arange(int(lengths.max()) if length is None else length)  # [L]
        places = self._starts[index].unsqueeze(1) + columns  # [B, L]
        ids = self._flat[places.clamp_(max=len(self._flat) - 1)]
        return ids.masked_fill_(columns >= lengths, Tokenizer.pad_id).long()


class BatchedExamples(Dataset[Any], ABC):
    """Encoded examples, batched by `TokenBatchSampler`; an item is one process's part of a batch, indexed by a `Share`.

    Attributes:
        lengths: The numbers of source and of target positions of each example.
        unit: A format string that names both numbers of positions in messages.
    """

    lengths: tuple[Integers, Integers]
    unit: ClassVar[str] = "{} source and {} target positions"

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.lengths[0])

    @abstractmethod
    def text(self, index: int) -> str | None:
        """Return the text of an example, if available."""

    def longest(self, share: Share) -> tuple[int, int]:
        """Return the maximum numbers of source and target positions of an example in the whole batch."""
        src, tgt = (int(lengths[share.batch].max()) for lengths in self.lengths)
        return src, tgt


class TokenExamples(BatchedExamples):
    """Encoded texts; a batch has `example`, `tokens`, padded to the longest in the whole batch, and `label` and `text` if there are any.

    Args:
        tokens: The ids of the texts.
        texts: The text of each example; `None` in training, where batches are tensors only.
        labels: The label of each example [N]: int64 classes or float32 numbers.

    Example:
        >>> examples = TokenExamples(Sequences([[1, 5, 2], [1, 2]]), None, labels=torch.tensor([1, 0]))
        >>> examples[Share(batch=[1, 0])]["label"]
        tensor([0, 1])
    """

    unit = "{} tokens"

    def __init__(self, tokens: Sequences, texts: Sequence[Any] | None, *, labels: Tensor | None = None) -> None:
        self.tokens, self.texts, self.labels = tokens, texts, labels
        self.lengths = (tokens.lengths, np.zeros_like(tokens.lengths))

    def content(self) -> list[Any]:
        """Return the arrays that make up the examples, by which a resumed run recognises them."""
        return [*self.tokens.content(), *([] if self.labels is None else [self.labels])]

    @override
    def text(self, index: int) -> str | None:
        return str(self.texts[index]) if self.texts else None

    def __getitem__(self, share: Share) -> Any:
        length, _ = self.longest(share)
        batch: dict[str, Any] = {"example": share.example(share.rows), "tokens": self.tokens.padded(share.rows, length)}
        if self.labels is not None:
            batch["label"] = self.labels[torch.as_tensor(share.answered, dtype=torch.int64)]
        if self.texts is not None:
            batch["text"] = [self.texts[i] for i in share.answered]
        return batch


class PairExamples(BatchedExamples):
    """Sources and encoded targets.

    Args:
        lengths: The number of positions of each source.
        tgt: Target sequences; `None` in prediction.
        texts: The source, as a text or by its name, and the references of each example; `None` in training, where batches are tensors only.
    """

    def __init__(self, *, lengths: Integers, tgt: Sequences | None, texts: Sequence[tuple[str, list[str]]] | None) -> None:
        self.tgt, self.texts = tgt, texts
        self.lengths = (lengths, lengths if tgt is None else tgt.lengths)

    def content(self) -> list[Any]:
        """Return the arrays that make up the examples, by which a resumed run recognises them."""
        return [] if self.tgt is None else self.tgt.content()

    @override
    def text(self, index: int) -> str | None:
        return self.texts[index][0] if self.texts else None

    @abstractmethod
    def sources(self, rows: Sequence[int], length: int) -> Seq2SeqBatch:
        """Return the sources of a batch, padded to `length`."""

    def __getitem__(self, share: Share) -> Seq2SeqBatch:
        rows, (src, tgt) = share.rows, self.longest(share)
        batch: Seq2SeqBatch = {"example": share.example(rows), **self.sources(rows, src)}
        if self.tgt is not None:
            targets = self.tgt.padded(rows, tgt)
            batch["tgt"] = without_targets(targets) if share.is_filler else targets
        if self.texts is not None:
            texts = [self.texts[i] for i in share.answered]
            batch["source"] = [source for source, _ in texts]
            batch["references"] = [references for _, references in texts]
        return batch


class Examples(PairExamples):
    """Encoded pairs.

    Args:
        src: Source sequences.
    """

    def __init__(self, *, src: Sequences, tgt: Sequences | None, texts: Sequence[tuple[str, list[str]]] | None) -> None:
        super().__init__(lengths=src.lengths, tgt=tgt, texts=texts)
        self.src = src

    @override
    def content(self) -> list[Any]:
        return [*self.src.content(), *super().content()]

    @override
    def sources(self, rows: Sequence[int], length: int) -> Seq2SeqBatch:
        return {"src": self.src.padded(rows, length)}


def without_targets(tgt: Tensor) -> Tensor:
    """Return targets [B, T] with everything except bos replaced by padding, so that nothing is scored."""
    return torch.cat([tgt[:, :1], torch.full_like(tgt[:, 1:], Tokenizer.pad_id)], 1)


class TokenBatchSampler(BatchSampler):
    """Yields batches of examples, with each example once per epoch over all processes.

    Examples are sorted by bands of source lengths, then by target length (alternately ascending and descending, so that neighbours are
    similar across bands), and cut into batches of at most `batch_tokens` positions, padding included: (longest source + longest target) x
    examples. The width of the bands is chosen to minimise padding. Every epoch has the same number of batches, and all processes share
    each batch. The batches and their order are a pure function of seed and epoch, independent of global random states.

    Use it as `DataLoader(examples, sampler=..., batch_size=None)`.

    Args:
        examples: The examples to sample from.
        batch_tokens: Maximum number of source and target positions in a batch over all processes. In prediction, targets are taken to be as
            long as the sources; a labelled text has no target.
        order: `shuffled`, for training: each epoch shuffles examples of equal lengths, moves the cuts and shuffles the batches. `fixed`,
            for evaluation: batches come in one random order that is always the same, so that the first few of them are a representative
            sample. `given`, for prediction: nothing is sorted.
        seed: Seed of the order, at least 0.
        share: This process's share of each batch (default: that of `torch.distributed` if it is initialised, else all of it).

    Raises:
        ConfigurationError: An example exceeds the budget.

    Example:
        >>> sequences = Sequences([[7, 2], [7, 8, 9, 2], [8, 2], [8, 9, 2]])
        >>> examples = Examples(src=sequences, tgt=sequences, texts=None)
        >>> sorted(sorted(share.rows.tolist()) for share in TokenBatchSampler(examples, batch_tokens=16, order="fixed"))
        [[0, 2], [1, 3]]
    """

    def __init__(
        self, examples: BatchedExamples, *, batch_tokens: int, order: Order, seed: int = 0, share: DataShare | None = None
    ) -> None:
        super().__init__(examples, share=share, shuffle=order == "shuffled", seed=seed)
        self.batch_tokens = batch_tokens
        self.order = order
        self._src, self._tgt = examples.lengths
        self._check_budget(examples)
        rng = np.random.default_rng(seed)
        self._band = min(_BANDS, key=lambda band: self._padded_size(self._arrange(rng, band)))
        ends = self._cut(self._arrange(rng, self._band))
        self._first = ends[0]
        # Moving the first cut forward takes one more batch, which is not worthwhile with few batches.
        self._moves_cuts = self.shuffle and len(ends) >= 50 and 2 * len(ends) <= len(examples)
        self.num_batches = len(ends) + self._moves_cuts

    @override
    def batches(self, rng: np.random.Generator) -> list[Integers]:
        indices = self._arrange(rng, self._band)
        ends = self._cut(indices, first=int(rng.integers(1, self._first, endpoint=True)) if self._moves_cuts else None)
        while len(ends) < self.num_batches:  # the extra batch was not needed: split the largest one
            sizes = np.diff(ends, prepend=0)
            largest = int(sizes.argmax())
            ends.insert(largest, ends[largest] - int(sizes[largest]) // 2)
        batches = np.split(indices, ends[:-1])
        return batches if self.order == "given" else [batches[i] for i in rng.permutation(len(batches))]

    def _arrange(self, rng: np.random.Generator, band: int) -> Integers:
        """Return the indices sorted by length, in random order among equal lengths, so that the sequence of lengths is always the same."""
        if self.order == "given":
            return np.arange(len(self._src))
        bands = self._src // band
        return np.lexsort((rng.permutation(len(bands)), self._src, np.where(bands % 2, -self._tgt, self._tgt), bands))

    def _cut(self, indices: Integers, first: int | None = None) -> list[int]:
        """Return the ends of the batches in `indices`, each as large as the budget allows; the first one has `first` examples, if given."""
        ends: list[int] = []
        start = longest_src = longest_tgt = 0
        for i, (src, tgt) in enumerate(zip(self._src[indices].tolist(), self._tgt[indices].tolist(), strict=True)):
            if src > longest_src:  # faster than max
                longest_src = src
            if tgt > longest_tgt:
                longest_tgt = tgt
            if i == first or (longest_src + longest_tgt) * (i + 1 - start) > self.batch_tokens:
                ends.append(i)
                start, longest_src, longest_tgt = i, src, tgt
        return [*ends, len(indices)]

    def _padded_size(self, indices: Integers) -> int:
        """Return the total number of positions of all batches."""
        ends = self._cut(indices)
        starts = [0, *ends[:-1]]
        longest = np.maximum.reduceat(self._src[indices], starts) + np.maximum.reduceat(self._tgt[indices], starts)
        return int((longest * np.diff(ends, prepend=0)).sum())

    def _check_budget(self, examples: BatchedExamples) -> None:
        longest = int((self._src + self._tgt).argmax())
        src, tgt = self._src[longest], self._tgt[longest]
        if src + tgt > self.batch_tokens:
            text = examples.text(longest)
            raise ConfigurationError(
                f"example {longest}{'' if text is None else f' ({text[:40]!r})'} has {examples.unit.format(src, tgt)}, more than "
                f"batch_tokens={self.batch_tokens}: raise batch_tokens, or set max_length for long examples"
            )
