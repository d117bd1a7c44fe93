# https://arxiv.org/abs/1910.10683
"""Spans of a text hidden behind sentinels: what is left is the source, and what was hidden is the target."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from attnkit.data.batching import BatchedExamples, Seq2SeqBatch, Sequences, without_targets
from attnkit.data.loading import Integers, Share
from attnkit.data.packing import PackedText
from attnkit.tokenizer import Tokenizer


class Corrupted(NamedTuple):
    """A source and a target: ids, with the special tokens of an encoder-decoder."""

    source: list[int]
    target: list[int]


class Corruption(NamedTuple):
    """How much of a text is hidden.

    Attributes:
        density: Part of the tokens that is hidden, between 0 and 1.
        mean_length: Mean length of a span, in tokens.
    """

    density: float
    mean_length: float

    def counts(self, lengths: Integers) -> tuple[Integers, Integers]:
        """Return how many tokens of texts of these lengths (each at least 2) are hidden, and in how many spans.

        Example:
            >>> hidden, spans = Corruption(density=0.15, mean_length=3.0).counts(np.array([2, 100, 512]))
            >>> hidden.tolist(), spans.tolist()
            ([1, 15, 77], [1, 5, 26])
        """
        hidden = np.rint(lengths * self.density).astype(np.int64).clip(1, lengths - 1)
        spans = np.rint(hidden / self.mean_length).astype(np.int64)
        return hidden, spans.clip(1, np.minimum(hidden, lengths - hidden + 1))

    def apply(self, tokens: Sequence[int], sentinels: Sequence[int], rng: np.random.Generator) -> Corrupted:
        """Hide spans of a text, each behind a sentinel of its own.

        How many tokens are hidden, and in how many spans, is certain. All ways to choose the spans, with at least one token between
        two of them, are equally likely. (T5's code always keeps the first token and hides the last one.)

        Paper: Raffel et al. 2020, section 3.1.4, https://arxiv.org/abs/1910.10683

        Args:
            tokens: The ids of a text, at least 2.
            sentinels: The ids of the sentinels, one more than there are spans.
            rng: Where the random numbers come from.

        Returns:
            The source: the text with a sentinel in place of each span, eos. The target: bos, each sentinel with its span, one more
            sentinel, eos.

        Example:
            >>> corruption, rng = Corruption(density=0.4, mean_length=2.0), np.random.default_rng(0)
            >>> corruption.apply([10, 11, 12, 13, 14, 15, 16, 17, 18, 19], [4, 5, 6], rng)
            Corrupted(source=[10, 11, 12, 4, 16, 17, 18, 5, 2], target=[1, 4, 13, 14, 15, 5, 19, 6, 2])
        """
        (hidden,), (spans,) = self.counts(np.array([len(tokens)]))
        cuts = np.sort(rng.choice(hidden - 1, size=spans - 1, replace=False)) + 1
        ends = np.append(cuts, hidden)  # [spans], in the row of all hidden tokens
        kept_before = np.sort(rng.choice(len(tokens) - hidden + 1, size=spans, replace=False))
        source: list[int] = []
        target = [Tokenizer.bos_id]
        place = hidden_before = 0
        for sentinel, kept, end in zip(sentinels, kept_before.tolist(), ends.tolist(), strict=False):
            start, stop = kept + hidden_before, kept + end
            source += [*tokens[place:start], sentinel]
            target += [sentinel, *tokens[start:stop]]
            place, hidden_before = stop, end
        return Corrupted([*source, *tokens[place:], Tokenizer.eos_id], [*target, sentinels[spans], Tokenizer.eos_id])


class CorruptedWindows(BatchedExamples):
    """Windows of a packed text, corrupted anew in every epoch of training; an item is one process's part of a batch.

    An example is a pure function of the seeds, the epoch and the window.

    Args:
        text: The text.
        context: Tokens in a window, at least 2. Windows do not cross documents; the last one of each is shorter, or left out if it has
            only one token.
        corruption: How much is hidden.
        sentinels: Ids of the sentinels.
        seeds: What the random numbers depend on, besides the epoch and the window.
        tokenizer: What decodes the texts of evaluation batches, which are the same in every epoch; None: batches are for training, and
            have no texts.
    """

    def __init__(
        self,
        text: PackedText,
        *,
        context: int,
        corruption: Corruption,
        sentinels: Sequence[int],
        seeds: Sequence[int],
        tokenizer: Tokenizer | None,
    ) -> None:
        ends = np.flatnonzero(text.ids == Tokenizer.eos_id)
        windows = -(-(np.diff(ends) - 1) // context)  # of each document
        numbers = np.arange(windows.sum()) - np.repeat(windows.cumsum() - windows, windows)  # of a window in its document
        starts = np.repeat(ends[:-1] + 1, windows) + context * numbers
        lengths = np.minimum(np.repeat(ends[1:], windows) - starts, context)
        self._starts, self._sizes = starts[lengths > 1], lengths[lengths > 1]
        self._text, self._corruption, self._sentinels, self._seeds = text, corruption, sentinels, list(seeds)
        self._tokenizer = tokenizer
        hidden, spans = corruption.counts(self._sizes)
        self.lengths = (self._sizes - hidden + spans + 1, hidden + spans + 3)  # with the sentinels, bos and eos

    @override
    def __len__(self) -> int:
        return len(self._starts)

    @override
    def text(self, index: int) -> str | None:
        return None if self._tokenizer is None else self._tokenizer.decode(self.example(index, epoch=0).source)

    def example(self, window: int, *, epoch: int) -> Corrupted:
        """Return an example of an epoch."""
        start = self._starts[window]
        tokens = self._text.ids[start : start + self._sizes[window]].tolist()
        return self._corruption.apply(tokens, self._sentinels, np.random.default_rng([*self._seeds, epoch, window]))

    def __getitem__(self, share: Share) -> Seq2SeqBatch:
        examples = [self.example(window, epoch=share.epoch) for window in share.rows]
        src, tgt = self.longest(share)
        targets = Sequences([example.target for example in examples]).padded(range(len(examples)), tgt)
        batch: Seq2SeqBatch = {
            "example": share.example(share.rows),
            "src": Sequences([example.source for example in examples]).padded(range(len(examples)), src),
            "tgt": without_targets(targets) if share.is_filler else targets,
        }
        if self._tokenizer is not None:
            answered = [] if share.is_filler else examples
            batch["source"] = [self._tokenizer.decode(example.source) for example in answered]
            batch["references"] = [[self._tokenizer.decode(example.target)] for example in answered]
        return batch
