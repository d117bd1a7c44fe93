"""The base of framings: their corpus, and the inputs for prediction."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader
from typing_extensions import override

from attnkit.corpus.base import Corpus, Part
from attnkit.corpus.reading import check, read_columns
from attnkit.data.batching import BatchedExamples, Order, TokenBatchSampler
from attnkit.data.config import FramingConfig
from attnkit.data.loading import BatchSampler, sampler_loader
from attnkit.data.summary import Summaries, Summary, counted
from attnkit.registry import ConfigurationError, Registry, Spec, corpora, datasets
from attnkit.strategy.sharing import DataShare, data_share

PARTS: dict[str, tuple[Part, ...]] = {"fit": ("train", "validation"), "validate": ("validation",), "test": ("test",)}


class Framing(LightningDataModule, ABC):
    """Turns the rows of a corpus into training examples.

    A subclass declares its options with `@keywords_of(...)`, and passes them on.

    Args:
        config: The options.
        **given: Further arguments of the corpus.

    Attributes:
        takes: The kind of corpus.
        config: The options.
        corpus: The corpus.
        image_shape: Channels, height and width, if the inputs are images.
        src_shape: Channels, height and width, if the sources are images; the number of features, if they are frames of sound.
        summaries: The reported summary of each split, with its bad rows.

    Raises:
        ConfigurationError: A number is out of range, or the corpus is of another kind; the message names those that fit.
    """

    takes: ClassVar[type[Corpus]]
    corpus: Any
    config: Any
    image_shape: Any = None
    src_shape: Any = None

    def __init__(self, config: FramingConfig, **given: Any) -> None:
        super().__init__()
        self.config, self.predict, self.seed = config, config.predict, config.seed
        self.corpus = build_corpus(config.corpus, self.takes, seed=self.seed, **given)
        self.summaries = Summaries(self.corpus)

    @override
    def setup(self, stage: str) -> None:
        """Check that the files exist: before the first step, not after the first epoch."""
        for part in PARTS.get(stage, ()):
            if self.corpus.has(part):
                self.corpus.check(part)
        if stage == "predict":
            self.check_prediction()

    def check_prediction(self) -> None:
        """Raise a `ConfigurationError` if there are no inputs for prediction."""
        check(self._prediction_file())

    def prediction_inputs(self, name: str) -> Sequence[str]:
        """Return the inputs for prediction, in the corpus's column `name`."""
        columns = self.corpus.columns_for(name)
        return [text for (text,) in read_columns(self._prediction_file(), columns, bad_rows=self.corpus.bad_rows["predict"])]

    @abstractmethod
    def evaluation_loader(self, part: Part) -> DataLoader[Any]:
        """Return a loader of the validation or test split."""

    @override
    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        return self.evaluation_loader("validation") if self.corpus.has("validation") else []

    @override
    def test_dataloader(self) -> DataLoader[Any]:
        return self.evaluation_loader("test")

    def token_batches(self, examples: BatchedExamples, *, order: Order) -> DataLoader[Any]:
        """Return a loader of batches of at most `batch_tokens` positions."""
        sampler = TokenBatchSampler(examples, batch_tokens=self.config.batch_tokens, order=order, seed=self.seed, share=self.share)
        return self.loader(examples, sampler)

    def within_limit(self, part: str, lengths: Sequence[int], *, unit: str, rows: str = "") -> tuple[list[int], Summary]:
        """Return which rows of a split are used, and their summary: in training those of at most `max_length`.

        Args:
            part: The split, or `predict`.
            lengths: The length of each row.
            unit: The name of a row.
            rows: The name of the split's rows in messages (default: by part and unit).

        Raises:
            ConfigurationError: All are longer.
        """
        limit = self.config.max_length if part == "train" else None
        kept = [i for i, length in enumerate(lengths) if limit is None or length <= limit]
        if not kept:
            raise ConfigurationError(f"all {len(lengths)} {rows or f'{part} {unit}s'} are longer than max_length={limit}; raise it")
        summary = Summary(part, counted(len(kept), unit))
        summary.note(len(lengths) - len(kept), f"omitted (longer than max_length={limit})")
        return kept, summary

    @property
    def share(self) -> DataShare | None:
        """This process's share of each batch; None without a trainer."""
        return data_share(self.trainer) if self.trainer else None

    def loader(self, examples: Any, sampler: BatchSampler) -> DataLoader[Any]:
        """Return a loader of the batches of `examples` that `sampler` yields."""
        return sampler_loader(examples, sampler, trainer=self.trainer, num_workers=self.config.num_workers)

    def _prediction_file(self) -> str:
        if self.predict is None:
            raise ConfigurationError("there are no inputs for prediction: set data.predict to a .txt file with one input per line")
        return self.predict


def require_distinct(classes: Sequence[str] | None) -> None:
    """Raise if a class is listed twice.

    Raises:
        ConfigurationError: One is.
    """
    if twice := [c for i, c in enumerate(classes or ()) if c in (classes or ())[:i]]:
        raise ConfigurationError(f"classes must be distinct, but {twice[0]!r} is listed twice")


def require_image_shape(shape: Sequence[int] | None) -> None:
    """Raise if a shape is not that of images.

    Raises:
        ConfigurationError: It is not.
    """
    if shape is not None and (len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1):
        raise ConfigurationError(f"image_shape must be [channels, height, width] with 1 or 3 channels, but is {shape}")


def build_corpus(spec: Spec, kind: type[Corpus], **given: Any) -> Any:
    """Build a corpus of a kind.

    Args:
        spec: The spec of the corpus.
        kind: The kind that it must have.
        **given: The arguments that the framing passes.

    Raises:
        ConfigurationError: It is of another kind (the message names suitable corpora, and the framings that take this one), or its spec
            is wrong.
    """
    name, _ = corpora.split(spec)
    found: type[Corpus] = corpora.get(name)
    if issubclass(found, kind):
        return corpora.build(spec, **given)
    fitting = [other for other in corpora if _is_subclass(corpora, other, kind)]
    framings = [other for other in datasets if _is_subclass(datasets, other, Framing) and issubclass(found, datasets.get(other).takes)]
    raise ConfigurationError(
        f"the corpus {name!r} holds {found.rows}, not {kind.rows}. Corpora of {kind.rows}: {', '.join(fitting)}. "
        f"Data modules for {found.rows}: {', '.join(framings) or 'none'}."
    )


def _is_subclass(registry: Registry, name: str, base: type) -> bool:
    with suppress(ConfigurationError):  # a broken plugin
        return issubclass(registry.get(name), base)
    return False
