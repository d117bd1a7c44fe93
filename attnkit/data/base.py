"""The base class of framings, with their corpus and the inputs for prediction."""

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, TypeVar

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import DataLoader
from typing_extensions import override

from attnkit.corpus.base import Corpus, Part
from attnkit.corpus.reading import check, read_columns
from attnkit.corpus.tables import unified
from attnkit.data.batching import Examples, Order, Sequences, TokenBatchSampler, TokenExamples
from attnkit.data.cache import trained
from attnkit.data.config import FramingConfig, TokensConfig
from attnkit.data.loading import BatchSampler, sampler_loader
from attnkit.data.summary import Summaries, Summary
from attnkit.registry import ConfigurationError, Spec, TokenizerSpec, corpora, datasets, tokenizers
from attnkit.strategy.sharing import DataShare, data_share
from attnkit.tokenizer import Tokenizer
from attnkit.wording import adjective, counted

Split = Part | Literal["predict"]
"""A split of the corpus, or the inputs for prediction."""

Batch = TypeVar("Batch")

PARTS: dict[str, tuple[Part, ...]] = {"fit": ("train", "validation"), "validate": ("validation",), "test": ("test",)}
_ORDERS: dict[Split, Order] = {"train": "shuffled", "validation": "fixed", "test": "fixed", "predict": "given"}


class Framing(LightningDataModule, ABC, Generic[Batch]):
    """Turns the rows of a corpus into training examples.

    A subclass declares its options with `@keywords_of(...)`, passes them on, and implements `read` and `examples`. Its batches have at most
    `batch_tokens` positions, unless it overrides `sampler`.

    Args:
        config: The options.
        **given: Further arguments of the corpus.

    Attributes:
        takes: The kind of corpus it takes.
        needs_predict: Whether prediction needs separate inputs; otherwise those of the test split are the default.
        keeps: Names of the attributes stored in checkpoints: plain data or tokenizers.
        image_shape: Channels, height and width, if the inputs are images.
        src_shape: Channels, height and width if the sources are images; the number of features if they are frames of sound.
        summaries: The summaries of splits, which report their bad rows too.

    Raises:
        ConfigurationError: A number is out of range, or the corpus is of another kind; the message names suitable ones.
    """

    takes: ClassVar[type[Corpus]]
    needs_predict: ClassVar[bool] = True
    keeps: Sequence[str] = ()
    corpus: Any
    config: Any
    image_shape: Any = None
    src_shape: Any = None

    def __init__(self, config: FramingConfig, **given: Any) -> None:
        super().__init__()
        self.config, self.predict, self.seed = config, config.predict, config.seed
        self.corpus = build_corpus(config.corpus, self.takes, seed=self.seed, **given)
        self.summaries = Summaries(self.corpus)
        self._aside: list[str | None] = []  # `aside` of the corpora in the checkpoint's run, as far as known

    @override
    def state_dict(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in self.keeps}
        aside = [corpus.aside for corpus in self.corpus.with_parts()]
        return {"aside": aside, **{name: v.spec if isinstance(v, Tokenizer) else v for name, v in kept.items()}}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._aside = aside if isinstance(aside := state_dict.get("aside"), list) else []
        for name in state_dict.keys() & self.keeps:
            setattr(self, name, tokenizers.build(state_dict[name]) if name.endswith("tokenizer") else state_dict[name])

    @override
    def setup(self, stage: str) -> None:
        """Check that the files exist: before the first step rather than after the first epoch."""
        for part in PARTS.get(stage, ()):
            if self.corpus.has(part):
                self.corpus.check(part)
        if stage == "predict" and self.predict is not None and self.needs_predict:
            check(self.predict)

    def prediction_inputs(self, name: str) -> Sequence[str]:
        """Return the inputs for prediction, from the corpus's column `name`."""
        columns = self.corpus.columns_for(name)
        return [unified(text) for (text,) in read_columns(self._prediction_file(), columns, bad_rows=self.corpus.bad_rows["predict"])]

    @abstractmethod
    def read(self, part: Split) -> Any:
        """Return the rows of a split, or the inputs for prediction."""

    @abstractmethod
    def examples(self, part: Split) -> Any:
        """Return the encoded `rows` of a split, ready for batching, and report its summary."""

    def rows(self, part: Split) -> Any:
        """Return the result of `read`; training rows are read only once."""
        return self._training if part == "train" else self.read(part)

    @cached_property
    def _training(self) -> Any:
        return self.read("train")

    def sampler(self, examples: Any, *, order: Order) -> BatchSampler:
        """Return the sampler of the batches of `examples`."""
        return TokenBatchSampler(examples, batch_tokens=self.config.batch_tokens, order=order, seed=self.seed, share=self.share)

    def loader(self, part: Split) -> DataLoader[Batch]:
        """Return a loader of the batches of a split."""
        examples = self.examples(part)
        pairs = [] if part in ("train", "predict") else zip(self.corpus.with_parts(), self._aside, strict=False)
        if any(corpus.is_cut(part) and corpus.aside not in (None, then) for corpus, then in pairs):
            rank_zero_warn(
                f"{part}: the rows set aside from the training data are not those of this checkpoint's run, because the data, data.seed, "
                f"data.corpus.validation_fraction or data.corpus.test_fraction differ. The model may have been trained on some of them"
            )
        sampler = self.sampler(examples, order=_ORDERS[part])
        return sampler_loader(examples, sampler, trainer=self.trainer, num_workers=self.config.num_workers)

    @override
    def train_dataloader(self) -> DataLoader[Batch]:
        return self.loader("train")

    @override
    def val_dataloader(self) -> DataLoader[Batch] | list[Any]:
        is_optional = self.trainer is None or self.trainer.state.fn != "validate"
        return [] if is_optional and not self.corpus.has("validation") else self.loader("validation")

    @override
    def test_dataloader(self) -> DataLoader[Batch]:
        return self.loader("test")

    @override
    def predict_dataloader(self) -> DataLoader[Batch]:
        return self.loader("predict")

    def within_limit(self, part: str, lengths: Sequence[int], *, unit: str, rows: str = "") -> tuple[list[int], Summary]:
        """Return the indices of the rows to use (in training, those up to `max_length`) and a summary. Messages call the rows `rows`."""
        limit = self.config.max_length if part == "train" else None
        kept = [i for i, length in enumerate(lengths) if limit is None or length <= limit]
        if not kept:
            rows = rows or f"{adjective(part)} {unit}s"
            raise ConfigurationError(f"all {len(lengths)} {rows} are longer than max_length={limit}; raise it")
        summary = Summary(part, counted(len(kept), unit))
        summary.note(len(lengths) - len(kept), f"omitted (longer than max_length={limit})")
        return kept, summary

    def note_seen(self, summary: Summary, rows: Iterable[Any]) -> None:
        """In a fit, which reads the training rows anyway, note how many validation rows have the same input as a training row."""
        if summary.split == "validation" and self.trainer is not None and self.trainer.state.fn == "fit":
            inputs = list(map(self.input_of, rows))
            held_out = set(inputs)
            seen = {found for row in self.rows("train") if (found := self.input_of(row)) in held_out}
            summary.note(sum(one in seen for one in inputs), "also in the training data")

    def input_of(self, row: Any) -> str:
        """Return the text of a row that the model reads, in Unicode normalisation form NFC."""
        return unicodedata.normalize("NFC", row[0])

    def sources(self, tokenizer: Tokenizer, texts: Sequence[str]) -> Examples:
        """Return sources to predict targets for, and report their summary."""
        self.summaries.say(Summary.of_texts("predict", tokenizer, texts))
        ids = Sequences([[*tokenizer.encode(text), Tokenizer.eos_id] for text in texts])
        return Examples(src=ids, tgt=None, texts=[(text, []) for text in texts])

    @property
    def share(self) -> DataShare | None:
        """This process's share of each batch; None without a trainer."""
        return data_share(self.trainer) if self.trainer else None

    def _prediction_file(self) -> str:
        if self.predict is None:
            raise ConfigurationError("there are no inputs for prediction: set data.predict to a .txt file with one input per line")
        return self.predict


def spec_of(tokenizer: str) -> Any:
    """Return a property of a framing: the plain data from which the trained tokenizer in attribute `tokenizer` can be rebuilt."""
    return property(lambda framing: getattr(framing, tokenizer).spec)


class TokenizedFraming(Framing[Batch]):
    """A framing with one tokenizer, which is stored in checkpoints; an untrained one is trained on `training_texts`."""

    keeps: Sequence[str] = ("tokenizer",)
    tokenizer_spec = spec_of("tokenizer")

    def __init__(self, config: TokensConfig, tokenizer: TokenizerSpec, **given: Any) -> None:
        super().__init__(config, **given)
        self._tokenizer: Tokenizer = tokenizers.build(tokenizer)

    @abstractmethod
    def training_texts(self) -> Iterable[str]:
        """Return the texts to train an untrained tokenizer on."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The trained tokenizer."""
        return trained(self._tokenizer, self.training_texts)

    def prompts(self, texts: Sequence[str]) -> TokenExamples:
        """Return texts to be continued, each as the start of a document, and report their summary."""
        self.summaries.say(Summary.of_texts("predict", self.tokenizer, texts))
        return TokenExamples(Sequences([[Tokenizer.bos_id, *self.tokenizer.encode(text)] for text in texts]), texts)


def require_distinct(classes: Sequence[str] | None) -> None:
    """Raise a `ConfigurationError` if a class is listed twice."""
    if duplicates := [c for i, c in enumerate(classes or ()) if c in (classes or ())[:i]]:
        raise ConfigurationError(f"classes must be distinct, but {duplicates[0]!r} is listed twice")


def require_image_shape(shape: Sequence[int] | None) -> None:
    """Raise a `ConfigurationError` if a shape is not an image shape."""
    if shape is not None and (len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1):
        raise ConfigurationError(f"image_shape must be [channels, height, width] with 1 or 3 channels, but is {shape}")


def build_corpus(spec: Spec, kind: type[Corpus], **given: Any) -> Any:
    """Build a corpus with the framing's arguments; if it is of another kind, the error names suitable corpora and framings."""
    name, _ = corpora.split(spec)
    found: type[Corpus] = corpora.get(name)
    if issubclass(found, kind):
        return corpora.build(spec, **given)
    fitting = [other for other, cls in corpora.classes().items() if issubclass(cls, kind)]
    framings = [other for other, cls in datasets.classes().items() if issubclass(cls, Framing) and issubclass(found, cls.takes)]
    raise ConfigurationError(
        f"the corpus {name!r} holds {found.rows}, not {kind.rows}. Corpora of {kind.rows}: {', '.join(fitting)}. "
        f"Data modules for {found.rows}: {', '.join(framings) or 'none'}."
    )
