"""Running text, as windows of packed documents."""

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from attnkit.data.base import Split
from attnkit.data.batching import Order, TokenExamples
from attnkit.data.loading import BatchSampler
from attnkit.data.packing import LanguageModelBatch, Windows, WindowSampler
from attnkit.data.running_text import RunningText, RunningTextConfig
from attnkit.registry import ConfigurationError, TokenizerSpec, datasets, keywords_of
from attnkit.wording import counted


@dataclass(frozen=True, kw_only=True)
class TextConfig(RunningTextConfig):
    """The options of `text`."""

    tokenizer: TokenizerSpec = "bpe"
    stride: int | None = None
    document_mask: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and not 1 <= self.stride <= self.context:
            raise ConfigurationError(f"stride must be from 1 to context={self.context}, but is {self.stride}")
        if self.batch_tokens < self.context:
            sizes = f"batch_tokens={self.batch_tokens} must be at least context={self.context}"
            raise ConfigurationError(f"{sizes}: a batch has at least one window")


@datasets.register("text")
class Text(RunningText[LanguageModelBatch]):
    """Running text for the tasks `causal_lm` and `masked_lm`. It may be larger than memory.

    The text is tokenized once, into a cache on disk (`attnkit.data.cache`). Batches are windows of `context` tokens of the concatenated
    documents, each followed by eos, so there is no padding; documents of only white space are skipped. `tokens` [B, T] are the inputs,
    `targets` [B, T] the next tokens; at the start of a document, the input is bos. In training, the windows start at different places in
    each epoch. In evaluation, every token is scored exactly once, and `characters` counts the scored characters.

    Args:
        corpus: The text: a corpus such as `kjv`, the path of your own file, or `hub:NAME`. Labels are ignored.
        tokenizer: Spec of the tokenizer; an untrained one is trained on the training text, or on an evenly spaced sample of 50 million
            of its characters if it is longer.
        context: Tokens in a window.
        stride: In evaluation, tokens between the starts of windows: values below `context` give each scored token more preceding
            context (default: `context`, no overlap).
        document_mask: Whether batches have `documents` [B, T], so that attention stays within a document.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "fish.txt")
        >>> _ = path.write_text("one fish two fish red fish blue fish " * 9)
        >>> data = Text(corpus={"name": str(path), "test_fraction": 0.1}, tokenizer="word", context=5, batch_tokens=10)
        >>> next(iter(data.train_dataloader()))["tokens"].shape
        torch.Size([2, 5])
    """

    config: TextConfig

    @keywords_of(TextConfig)
    def __init__(self, config: TextConfig) -> None:
        super().__init__(config, config.tokenizer)

    @override
    def examples(self, part: Split) -> TokenExamples | Windows:
        found = self.read(part)
        if part == "predict":
            return self.prompts(found)
        if part == "train" and len(found) < self.config.context:
            raise ConfigurationError(
                f"the training text has {counted(len(found), 'token')}, too few for a window of context={self.config.context}: "
                "lower context"
            )
        return Windows(found, context=self.config.context, documents=self.config.document_mask, counts=part != "train")

    @override
    def sampler(self, examples: Any, *, order: Order) -> BatchSampler:
        if order == "given":
            return super().sampler(examples, order=order)
        stride = None if order == "shuffled" else self.config.stride or self.config.context
        size = self.config.batch_tokens // examples.context
        return WindowSampler(examples, batch_size=size, stride=stride, seed=self.seed, share=self.share)
