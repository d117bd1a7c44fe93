"""Span corruption of running text, T5's pre-training objective."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from attnkit.data.base import Split
from attnkit.data.batching import Examples, Seq2SeqBatch, Sequences
from attnkit.data.running_text import RunningText, RunningTextConfig
from attnkit.data.spans import CorruptedWindows, Corruption
from attnkit.data.summary import Summary
from attnkit.registry import ConfigurationError, TokenizerSpec, datasets, keywords_of, tokenizers
from attnkit.tokenizer import Tokenizer


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
    """Running text with hidden spans, for the task `seq2seq`: the source has a sentinel for each span, and the target has the spans.

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
        src_tokenizer: Spec of the tokenizer of both sides. An untrained one is given as many sentinels as a window needs among its extra
            tokens, and is trained on the training text.

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
    config: SpanCorruptionConfig

    @keywords_of(SpanCorruptionConfig)
    def __init__(self, config: SpanCorruptionConfig) -> None:
        self.corruption = Corruption(config.density, config.mean_length)
        _, spans = self.corruption.counts(np.arange(2, config.context + 1))
        self._sentinels = [f"<extra_{i}>" for i in range(int(spans.max()) + 1)]
        super().__init__(config, _with(self._sentinels, config.src_tokenizer))

    @property
    def src_tokenizer_spec(self) -> dict[str, Any]:
        """Plain data from which the trained tokenizer is rebuilt."""
        return self.tokenizer_spec

    @property
    def tgt_tokenizer_spec(self) -> dict[str, Any]:
        """The same as that of the source: both sides share one tokenizer."""
        return self.tokenizer_spec

    @override
    def examples(self, part: Split) -> Examples | CorruptedWindows:
        found = self.read(part)
        if part == "predict":
            self.summaries.say(Summary.of_texts("predict", self.tokenizer, found))
            ids = Sequences([[*self.tokenizer.encode(source), Tokenizer.eos_id] for source in found])
            return Examples(src=ids, tgt=None, texts=[(source, []) for source in found])
        windows = CorruptedWindows(
            found,
            context=self.config.context,
            corruption=self.corruption,
            sentinels=[self.tokenizer.id_of(sentinel) for sentinel in self._sentinels],
            seeds=[1, self.seed] if part == "train" else [0],
            tokenizer=None if part == "train" else self.tokenizer,
        )
        if not len(windows):
            raise ConfigurationError(f"no document of the {part} text has two tokens, so there is nothing to hide")
        return windows


def _with(sentinels: Sequence[str], spec: TokenizerSpec) -> dict[str, Any]:
    """Return the spec of the tokenizer with the sentinels added to its extra tokens."""
    resolved = tokenizers.resolve(spec)
    extra = resolved.get("extra_tokens") or []
    missing = [sentinel for sentinel in sentinels if sentinel not in extra]
    if missing and tokenizers.build(spec).trained:
        raise ConfigurationError(
            f"src_tokenizer is trained, but lacks {missing[0]!r}: windows of this size need {len(sentinels)} sentinels. "
            f"Lower context or density, or give an untrained tokenizer"
        )
    return {**resolved, "extra_tokens": [*extra, *missing]}
