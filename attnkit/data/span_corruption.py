# https://arxiv.org/abs/1910.10683
"""Span corruption of running text, T5's pre-training objective."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from attnkit.data.base import Split, spec_of
from attnkit.data.batching import BatchedExamples, Examples, Seq2SeqBatch, Sequences, without_targets
from attnkit.data.loading import Integers, Share
from attnkit.data.packing import PackedText
from attnkit.data.running_text import RunningText, RunningTextConfig
from attnkit.registry import ConfigurationError, TokenizerSpec, datasets, keywords_of, tokenizers
from attnkit.tokenizer import Tokenizer
from attnkit.wording import adjective


class Corrupted(NamedTuple):
    """The ids of a source and a target, with the special tokens of an encoder-decoder."""

    source: list[int]
    target: list[int]


class Corruption(NamedTuple):
    """The amount of text to hide."""

    density: float  # fraction of the tokens to hide, between 0 and 1
    mean_length: float  # mean length of a span, in tokens

    def counts(self, lengths: Integers) -> tuple[Integers, Integers]:
        """Return the number of hidden tokens and of spans for texts of these lengths (each at least 2).

        Example:
            >>> hidden, spans = Corruption(density=0.15, mean_length=3.0).counts(np.array([2, 100, 512]))
            >>> hidden.tolist(), spans.tolist()
            ([1, 15, 77], [1, 5, 26])
        """
        hidden = np.rint(lengths * self.density).astype(np.int64).clip(1, lengths - 1)
        spans = np.rint(hidden / self.mean_length).astype(np.int64)
        return hidden, spans.clip(1, np.minimum(hidden, lengths - hidden + 1))

    def apply(self, tokens: Sequence[int], sentinels: Sequence[int], rng: np.random.Generator) -> Corrupted:
        """Replace spans of a text of at least 2 tokens with sentinels: one per span, and one more at the end of the target.

        The numbers of hidden tokens and of spans are fixed. All choices of spans with at least one token between any two are equally
        likely. (T5's code always keeps the first token and hides the last one.)

        Paper: Raffel et al. 2020, section 3.1.4, https://arxiv.org/abs/1910.10683

        Returns:
            The source: the text with a sentinel in place of each span, eos. The target: bos, each sentinel followed by its span, a final
            sentinel, eos.

        Example:
            >>> corruption, rng = Corruption(density=0.4, mean_length=2.0), np.random.default_rng(0)
            >>> corruption.apply([10, 11, 12, 13, 14, 15, 16, 17, 18, 19], [4, 5, 6], rng)
            Corrupted(source=[10, 11, 12, 4, 16, 17, 18, 5, 2], target=[1, 4, 13, 14, 15, 5, 19, 6, 2])
        """
        (hidden,), (spans,) = self.counts(np.array([len(tokens)]))
        cuts = np.sort(rng.choice(hidden - 1, size=spans - 1, replace=False)) + 1
        ends = np.append(cuts, hidden)  # [spans], within the concatenated hidden tokens
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
    """Windows of a packed text, corrupted differently in each epoch of training; an item is one process's part of a batch.

    Windows have `context` tokens, at least 2, and do not cross documents; the last window of a document may be shorter, and is omitted if
    it has only one token. An example is a pure function of the seeds, the epoch and the window. Evaluation batches, which are the same in
    every epoch, have texts, decoded by `tokenizer`; training batches have none.
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
        windows = -(-(np.diff(ends) - 1) // context)  # per document
        numbers = np.arange(windows.sum()) - np.repeat(windows.cumsum() - windows, windows)  # index of each window in its document
        starts = np.repeat(ends[:-1] + 1, windows) + context * numbers
        lengths = np.minimum(np.repeat(ends[1:], windows) - starts, context)
        self._starts, self._sizes = starts[lengths > 1], lengths[lengths > 1]
        self._text, self._corruption, self._sentinels, self._seeds = text, corruption, sentinels, list(seeds)
        self._tokenizer = tokenizer
        hidden, spans = corruption.counts(self._sizes)
        self.lengths = (self._sizes - hidden + spans + 1, hidden + spans + 3)  # with the sentinels, bos and eos

    def content(self) -> list[Any]:
        """Return the arrays that make up the examples, by which a resumed run recognises them."""
        return [self._text.ids]

    @override
    def text(self, index: int) -> str | None:
        return None if self._tokenizer is None else self._tokenizer.decode(self.example(index, epoch=0).source)

    def example(self, window: int, *, epoch: int) -> Corrupted:
        """Return the example that a window becomes in an epoch."""
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
            answered = examples[: len(share.answered)]
            batch["source"] = [self._tokenizer.decode(example.source) for example in answered]
            batch["references"] = [[self._tokenizer.decode(example.target)] for example in answered]
        return batch


@dataclass(frozen=True, kw_only=True)
class SpanCorruptionConfig(RunningTextConfig):
    """The options of `span_corruption`."""

    context: int = 128
    density: float = 0.15
    mean_length: float = 3.0
    src_tokenizer: TokenizerSpec = field(default_factory=lambda: {"name": "bpe", "vocab_size": 4000})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context < 2 or not 0 < self.density < 1 or self.mean_length < 1:
            raise ConfigurationError(
                f"context must be at least 2, density above 0 and below 1, and mean_length at least 1, but they are {self.context}, "
                f"{self.density} and {self.mean_length}"
            )


@datasets.register("span_corruption")
class SpanCorruption(RunningText[Seq2SeqBatch]):
    """Running text with hidden spans, for the task `seq2seq`: the source has a sentinel in place of each span, and the target the spans.

    The target of `Thank you <extra_0> me to your party <extra_1> week .` is `<extra_0> for inviting <extra_1> last <extra_2>`. By default,
    15 % of the tokens of each window are hidden, in spans of mean length 3; all choices of spans are equally likely. Spans are redrawn in
    each training epoch, and fixed in evaluation.

    Paper: Raffel et al. 2020, section 3.1.4, https://arxiv.org/abs/1910.10683

    Args:
        corpus: The text: a corpus such as `kjv`, the path of your own file, or `hub:NAME`. Windows do not cross documents.
        predict: A file with sources, sentinels included, for prediction: `.txt` with one per line, or a table with a column
            `source`. Their order is preserved.
        context: Tokens in a window, before the corruption.
        density: Fraction of the tokens to hide, between 0 and 1.
        mean_length: Mean length of a span, in tokens, at least 1.
        src_tokenizer: Spec of the tokenizer of both sides. An untrained one is trained on the training text; as many sentinels as a window
            needs are added to its extra tokens.

    Raises:
        ConfigurationError: The corpus has no text or cannot be read, a number is out of range, or a trained tokenizer lacks a sentinel.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "fish.txt")
        >>> _ = path.write_text("one fish two fish red fish blue fish " * 9)
        >>> data = SpanCorruption(corpus=str(path), src_tokenizer="word", context=20)
        >>> batch = next(iter(data.train_dataloader()))
        >>> batch["src"].shape, batch["tgt"].shape
        (torch.Size([4, 19]), torch.Size([4, 7]))
    """

    field: ClassVar = "source"
    src_tokenizer_spec = tgt_tokenizer_spec = spec_of("tokenizer")  # both sides share one tokenizer
    config: SpanCorruptionConfig

    @keywords_of(SpanCorruptionConfig)
    def __init__(self, config: SpanCorruptionConfig) -> None:
        self.corruption = Corruption(config.density, config.mean_length)
        _, spans = self.corruption.counts(np.arange(2, config.context + 1))
        self._sentinels = [f"<extra_{i}>" for i in range(int(spans.max()) + 1)]
        super().__init__(config, _with(self._sentinels, config.src_tokenizer))

    @override
    def examples(self, part: Split) -> Examples | CorruptedWindows:
        found = self.read(part)
        if part == "predict":
            return self.sources(self.tokenizer, found)
        windows = CorruptedWindows(
            found,
            context=self.config.context,
            corruption=self.corruption,
            sentinels=[self.tokenizer.id_of(sentinel) for sentinel in self._sentinels],
            seeds=[1, self.seed] if part == "train" else [0],
            tokenizer=None if part == "train" else self.tokenizer,
        )
        if not len(windows):
            raise ConfigurationError(f"no document of the {adjective(part)} text has two tokens, so there is nothing to hide")
        return windows


def _with(sentinels: Sequence[str], spec: TokenizerSpec) -> dict[str, Any]:
    """Return the spec of the tokenizer with the sentinels added to its extra tokens."""
    resolved = tokenizers.resolve(spec)
    extra = resolved.get("extra_tokens") or []
    missing = [sentinel for sentinel in sentinels if sentinel not in extra]
    if missing and tokenizers.build(spec).trained:
        raise ConfigurationError(
            f"src_tokenizer is trained, but lacks {missing[0]!r}: windows of this size need {len(sentinels)} sentinels. "
            f"Lower context or density, or use an untrained tokenizer"
        )
    return {**resolved, "extra_tokens": [*extra, *missing]}
