"""Running text with spans hidden: what T5 is pre-trained on."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from torch.utils.data import DataLoader
from typing_extensions import override

from attnkit.data.batching import BatchedExamples, Examples, Sequences, batch_loader
from attnkit.data.language_model import LanguageModelData, Part
from attnkit.data.packing import Piece
from attnkit.data.reading import check, read_columns
from attnkit.data.spans import CorruptedWindows, Corruption
from attnkit.data.summary import Summary
from attnkit.registry import ConfigurationError, Spec, TokenizerSpec, datasets, tokenizers
from attnkit.tokenizer import Tokenizer

_OURS = ("tokenizer", "context", "stride", "batch_tokens", "document_mask", "predict", "seed", "num_workers")


@datasets.register("span_corruption")
class SpanCorruption(LanguageModelData):
    """Running text with spans hidden, for the `seq2seq` task: the source has a sentinel in place of each span, the target has the spans.

    `Thank you <extra_0> me to your party <extra_1> week .` asks for `<extra_0> for inviting <extra_1> last <extra_2>`. Of each window
    15 % of the tokens are hidden, in spans of 3 on average; all ways to choose the spans are equally likely. In training they are chosen
    anew in each epoch, in evaluation they are always the same.

    Paper: Raffel et al. 2020, section 3.1.4, https://arxiv.org/abs/1910.10683

    Args:
        text: The text: `kjv`, or `text` with its files. It is cut into windows inside of its documents. What is an argument of
            `span_corruption` too is set here, not there.
        predict: A file with sources to predict targets for, sentinels in them: `.txt` with one per line, or a table with a column
            `source`. Their order is kept.
        context: Tokens in a window, before the corruption.
        density: Part of the tokens that is hidden, between 0 and 1.
        mean_length: Mean length of a span, in tokens, at least 1.
        src_tokenizer: Spec of the tokenizer of both sides. An untrained one gets as many sentinels among its extra tokens as a window
            needs, and is trained on the training text.
        batch_tokens: The budget of source and target positions in a batch over all processes, padding included.
        seed: Of the spans and of the order; global random states play no part.
        num_workers: Processes that prepare batches (0: the main process does).

    Raises:
        ConfigurationError: `text` is no running text, a number is out of range, or a trained tokenizer lacks a sentinel.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "fish.txt")
        >>> _ = path.write_text("one fish two fish red fish blue fish " * 9)
        >>> data = SpanCorruption(text={"name": "text", "train": str(path)}, src_tokenizer="word", context=20)
        >>> batch = next(iter(data.train_dataloader()))
        >>> batch["src"].shape, batch["tgt"].shape
        (torch.Size([4, 19]), torch.Size([4, 7]))
    """

    def __init__(
        self,
        *,
        text: Annotated[Spec, datasets],
        predict: str | None = None,
        context: int = 128,
        density: float = 0.15,
        mean_length: float = 3.0,
        src_tokenizer: TokenizerSpec = {"name": "bpe", "vocab_size": 4000},  # noqa: B006
        batch_tokens: int = 4096,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        if context < 2 or not 0 < density < 1 or mean_length < 1:
            raise ConfigurationError(
                f"context must be at least 2, density above 0 and below 1, and mean_length at least 1, but they are {context}, {density} "
                f"and {mean_length}"
            )
        self.corruption = Corruption(density, mean_length)
        _, spans = self.corruption.counts(np.arange(2, context + 1))
        sentinels = [f"<extra_{i}>" for i in range(int(spans.max()) + 1)]
        tokenizer = _with(sentinels, src_tokenizer)
        super().__init__(
            tokenizer=tokenizer,
            context=context,
            stride=None,
            batch_tokens=batch_tokens,
            document_mask=False,
            seed=seed,
            num_workers=num_workers,
        )
        self.text = _text(text)
        self.predict = predict
        self.summaries = self.text.summaries  # with the bad rows of its files
        self._sentinels = sentinels

    @property
    def src_tokenizer_spec(self) -> dict[str, Any]:
        """Plain data that rebuilds the trained tokenizer."""
        return self.tokenizer_spec

    @property
    def tgt_tokenizer_spec(self) -> dict[str, Any]:
        """The same: both sides are one text."""
        return self.tokenizer_spec

    @override
    def setup(self, stage: str) -> None:
        if stage == "predict":  # before the model is loaded
            self._require_sources()

    @override
    def has(self, part: Part) -> bool:
        return self.text.has(part)

    @override
    def pieces(self, part: Part) -> Iterator[Piece]:
        return self.text.pieces(part)

    @override
    def prompts(self) -> Sequence[str]:
        return [source for (source,) in read_columns(self._require_sources(), ["source"])]

    @override
    def train_dataloader(self) -> DataLoader[Any]:
        return self._batches(self._windows("train", seeds=[1, self.seed], tokenizer=None), order="shuffled")

    @override
    def _evaluation_loader(self, part: Part) -> DataLoader[Any]:
        return self._batches(self._windows(part, seeds=[0], tokenizer=self.tokenizer), order="fixed")

    @override
    def predict_dataloader(self) -> DataLoader[Any]:
        sources = self.prompts()
        self.summaries.say(Summary.of_texts("predict", self.tokenizer, sources))
        ids = Sequences([[*self.tokenizer.encode(source), Tokenizer.eos_id] for source in sources])
        return self._batches(Examples(src=ids, tgt=None, texts=[(source, []) for source in sources]), order="given")

    def _windows(self, part: Part, *, seeds: Sequence[int], tokenizer: Tokenizer | None) -> CorruptedWindows:
        windows = CorruptedWindows(
            self.packed(part),
            context=self.context,
            corruption=self.corruption,
            sentinels=[self.tokenizer.id_of(sentinel) for sentinel in self._sentinels],
            seeds=seeds,
            tokenizer=tokenizer,
        )
        if not len(windows):
            raise ConfigurationError(f"no document of the {part} text has two tokens, so there is nothing to hide")
        return windows

    def _batches(self, examples: BatchedExamples, *, order: Literal["shuffled", "fixed", "given"]) -> DataLoader[Any]:
        return batch_loader(
            examples, trainer=self.trainer, batch_tokens=self.batch_tokens, order=order, seed=self.seed, num_workers=self.num_workers
        )

    def _require_sources(self) -> str:
        if self.predict is None:
            raise ConfigurationError("span_corruption has no sources to predict for: set predict to a .txt file with one per line")
        check(self.predict)
        return self.predict


def _with(sentinels: Sequence[str], spec: TokenizerSpec) -> dict[str, Any]:
    """Return the spec of the tokenizer with the sentinels among its extra tokens."""
    resolved = tokenizers.resolve(spec)
    extra = resolved.get("extra_tokens") or []
    missing = [sentinel for sentinel in sentinels if sentinel not in extra]
    if missing and tokenizers.build(spec).trained:
        raise ConfigurationError(
            f"src_tokenizer is trained, but lacks {missing[0]!r}: windows of this size need {len(sentinels)} sentinels. "
            f"Lower context or density, or let a new tokenizer be trained"
        )
    return {**resolved, "extra_tokens": [*extra, *missing]}


def _text(spec: Spec) -> LanguageModelData:
    """Build the text, and refuse what would have no effect in it."""
    name, given = datasets.split(spec)
    if not issubclass(datasets.get(name), LanguageModelData) or issubclass(datasets.get(name), SpanCorruption):
        raise ConfigurationError(f"span_corruption reads running text, such as kjv or text, but {name!r} is none")
    for argument in datasets.arguments(name):
        value, default = given.get(argument.name, argument.default), argument.default
        if argument.registry is not None:
            value, default = (argument.registry.resolve(spec) for spec in (value, default))
        if argument.name in _OURS and value != default:
            ours = "src_tokenizer" if argument.name == "tokenizer" else argument.name
            hint = f"set data.{ours}" if ours in inspect.signature(SpanCorruption).parameters else "leave it out"
            raise ConfigurationError(f"{argument.name} of the text has no effect in span_corruption: {hint}")
    text: LanguageModelData = datasets.build(spec)
    return text
