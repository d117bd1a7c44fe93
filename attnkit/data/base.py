"""The base of framings: their corpus, and the inputs for prediction."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader
from typing_extensions import override

from attnkit.corpus.base import Corpus, Labels, Part
from attnkit.corpus.reading import check, read_columns
from attnkit.data.batching import BatchedExamples, Order, TokenBatchSampler
from attnkit.data.loading import BatchSampler, sampler_loader
from attnkit.data.summary import Summaries
from attnkit.registry import ConfigurationError, Registry, Spec, corpora, datasets, require_at_least
from attnkit.strategy.sharing import DataShare, data_share

PARTS: dict[str, tuple[Part, ...]] = {"fit": ("train", "validation"), "validate": ("validation",), "test": ("test",)}


class Framing(LightningDataModule, ABC):
    """Turns the rows of a corpus into training examples.

    Args:
        corpus: Spec of a corpus of the kind that this framing takes.
        predict: The location of the inputs for prediction.
        seed: Seed, at least 0; also passed to the corpus.
        num_workers: Processes that load batches (0: the main process).
        labels: The kind of labels, if the corpus has several.

    Attributes:
        takes: The kind of corpus.
        corpus: The corpus.
        image_shape: Channels, height and width, if the inputs are images.
        src_shape: Channels, height and width, if the sources are images; the number of features, if they are frames of sound.
        summaries: The reported summary of each split, with its bad rows.

    Raises:
        ConfigurationError: A number is out of range, or the corpus is of another kind; the message names those that fit.
    """

    takes: ClassVar[type[Corpus]]
    corpus: Any
    image_shape: Any = None
    src_shape: Any = None
    batch_tokens: int

    def __init__(self, *, corpus: Spec, predict: str | None, seed: int, num_workers: int, labels: Labels | None = None) -> None:
        super().__init__()
        require_at_least(0, seed=seed, num_workers=num_workers)
        self.corpus = build_corpus(corpus, self.takes, seed=seed, **({} if labels is None else {"labels": labels}))
        self.summaries = Summaries(self.corpus)
        self.predict, self.seed, self.num_workers = predict, seed, num_workers

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
        sampler = TokenBatchSampler(examples, batch_tokens=self.batch_tokens, order=order, seed=self.seed, share=self.share)
        return self.loader(examples, sampler)

    @property
    def share(self) -> DataShare | None:
        """This process's share of each batch; None without a trainer."""
        return data_share(self.trainer) if self.trainer else None

    def loader(self, examples: Any, sampler: BatchSampler) -> DataLoader[Any]:
        """Return a loader of the batches of `examples` that `sampler` yields."""
        return sampler_loader(examples, sampler, trainer=self.trainer, num_workers=self.num_workers)

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
