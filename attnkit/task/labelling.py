"""The base classes of tasks that label texts, images or the words of texts: model, evaluation and predictions."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from attnkit.models.base import generating
from attnkit.registry import ConfigurationError, OptimizerSpec, ScheduleSpec, TokenizerSpec, nearest, require_at_least
from attnkit.task.composed import ComposedConfig, ComposedTask
from attnkit.task.config import default, trained_tokenizer
from attnkit.task.evaluation import spread
from attnkit.task.generating import input_mask
from attnkit.task.loss import Sums
from attnkit.task.metrics import Mean
from attnkit.task.texts import in_batches, one_line
from attnkit.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class LabellingConfig(ComposedConfig):
    """The options of tasks that label texts, images or the words of texts.

    Args:
        stack: An encoder or a decoder stack.
        tokenizer: Spec of the trained tokenizer of texts, or None for images (default: the data module's `tokenizer_spec`).
        embedding: The embedding: one that reads tokens, or `patch` for images.
        samples: Number of predictions printed after a validation.
    """

    tokenizer: TokenizerSpec | None = None
    optimizer: OptimizerSpec = default("adamw", lr=1e-3, weight_decay=0.01)
    schedule: ScheduleSpec = default("linear", warmup_steps=0.1)
    metrics: Sequence[str]
    samples: int = 8

    def __post_init__(self) -> None:
        require_at_least(0, samples=self.samples)


@dataclass(frozen=True, kw_only=True)
class PooledConfig(LabellingConfig):
    """The options of tasks with one answer per text or image.

    Args:
        image_shape: Channels, height and width of images, or None for texts (default: the data module's).
        pooling: The vector that represents the whole: the first one (`class_token`; bos is BERT's [CLS]), the `mean` of all, or the `last`.
        pooler: Whether the output map is preceded by BERT's dense layer with tanh.
    """

    image_shape: list[int] | None = None
    pooling: Literal["class_token", "mean", "last"] = "mean"
    pooler: bool = False


class LabellingTask(ComposedTask):
    """A task that labels texts or images or, by default, each word of a text at its first token.

    A subclass defines the number of outputs (`outputs`), the loss (`sums`), the metrics (`metric_kinds` and `updates`), the predictions
    (`answers`), and how to show one (`sample_line`). If it labels whole texts or images, it derives from `PooledTask`.

    A batch is a mapping of `tokens` [B, T] (bos, tokens, eos, padding) or `image` [B, C, H, W], `label` [B, ...], and for evaluation and
    prediction `text`, the texts or the names of the images. If there are fewer labels and texts than inputs, the remaining inputs are
    ignored. Batches for labelling words are `attnkit.data.words.WordBatch`.

    `metrics` has at least one name; the first one selects the best checkpoint.
    """

    config: LabellingConfig
    metric_kinds: ClassVar[Mapping[str, Callable[[int], Metric]]]  # makes each metric, given the number of outputs

    @override
    def derive(self) -> None:
        self.chosen = metrics = self.config.metrics
        if isinstance(metrics, str) or not metrics:
            raise ConfigurationError(f"metrics must be a list of names, as in [{metrics or next(iter(self.metric_kinds))}]")
        if unknown := [name for name in metrics if name not in self.metric_kinds]:
            near, known = nearest(unknown[0], self.metric_kinds), ", ".join(self.metric_kinds)
            raise ConfigurationError(f"unknown metric {unknown[0]!r}.{near} Names: {known}.")
        self.tokenizer = self.trained_tokenizer()
        super().derive()

    def trained_tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer of texts, or None if the inputs are images."""
        return trained_tokenizer(self.config.tokenizer, "tokenizer")

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of outputs of the model per input, or per token."""

    @abstractmethod
    def sums(self, outputs: Tensor, batch: Mapping[str, Any]) -> Sums:
        """Return the sums for a batch, from outputs [B, C], or [B, T, C] for words."""

    @abstractmethod
    def updates(self, outputs: Tensor, batch: Mapping[str, Any]) -> Mapping[str, Sequence[Any] | None]:
        """Return the arguments of each metric's update; None leaves the metric unchanged."""

    @abstractmethod
    def answers(self, outputs: Tensor, batch: Mapping[str, Any]) -> list[Any]:
        """Return the predictions for the first inputs of a batch, from their outputs."""

    @abstractmethod
    def truths(self, batch: Mapping[str, Any]) -> list[Any]:
        """Return the true answer for each input of a batch, in the form that `sample_line` takes."""

    @abstractmethod
    def sample_line(self, prediction: Any, truth: Any) -> str:
        """Return a line with a prediction and the truth."""

    @override
    def new_metrics(self) -> dict[str, Metric]:
        return {"loss": Mean(), **{name: self.metric_kinds[name](self.outputs) for name in self.config.metrics}}

    @override
    def samples(self) -> list[str]:
        return [self.sample_line(prediction, truth) for prediction, truth in spread(self.shown, self.config.samples)]

    @property
    @override
    def sizes(self) -> dict[str, Any]:
        return {**super().sizes, "num_classes": self.outputs, "pooling": "none"}  # unless `pooling` is an option

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs [B, C], or [B, T, C] for words, for tokens [B, T], padded with `pad_id`, or images [B, C, H, W]."""
        outputs: Tensor = self.model(inputs, input_mask(inputs))
        return outputs

    def _read(self, batch: Mapping[str, Any], given: str) -> Tensor:
        """Return the outputs for those inputs of a batch that have an entry in `given` (`label` or `text`)."""
        outputs: Tensor = self(batch["image" if self.tokenizer is None else "tokens"])
        return outputs[: len(batch[given])]

    @override
    def objective(self, batch: dict[str, Any]) -> Sums:
        if "label" not in batch:
            raise ConfigurationError("some training texts have no labels, which only masked_lm can use: remove data.unlabelled")
        return self.sums(self._read(batch, "label"), batch)

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[Any]:
        return self.answers(self._read(batch, "text").float(), batch)

    @override
    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> None:
        outputs = self._read(batch, "label")
        sums = self.sums(outputs, batch)
        outputs = outputs.float()
        updates = {"loss": (sums.nll, sums.targets), **self.updates(outputs, batch)}
        self.log_metrics(stage, updates, rows=len(outputs), shown=self.config.metrics[:1])
        if stage == "val":
            self.shown += list(zip(self.answers(outputs[: self.config.samples], batch), self.truths(batch), strict=False))


class PooledTask(LabellingTask):
    """A task with one answer per text or image, which a subclass defines in `answer`."""

    config: PooledConfig

    @override
    def trained_tokenizer(self) -> Tokenizer | None:
        return None if self.config.tokenizer is None else super().trained_tokenizer()

    @abstractmethod
    def answer(self, text: str, outputs: Tensor) -> Any:
        """Return the prediction for the input named `text`, from its row of the outputs, which is on the CPU."""

    @override
    def answers(self, outputs: Tensor, batch: Mapping[str, Any]) -> list[Any]:
        return [self.answer(text, row) for text, row in zip(batch["text"], outputs.float().cpu(), strict=False)]

    @override
    def truths(self, batch: Mapping[str, Any]) -> list[Any]:
        truths: list[Any] = batch["label"].tolist()
        return truths

    def predict_texts(self, texts: Sequence[str]) -> list[Any]:
        r"""Return the prediction for each text, which is read whole; predictions do not depend on how texts are batched.

        The task does not know `data.max_length`, which data modules truncate texts to, even for `attnkit predict`. Line breaks `\r\n` are
        read as `\n`, as in data files. A printed prediction is one line; see `one_line`.

        Raises:
            TypeError: `texts` is a single string.
            ConfigurationError: The model reads images.
        """
        self.configure_model()
        if self.tokenizer is None:
            raise ConfigurationError("this model reads images: call the task with a batch of them, or use `attnkit predict`")

        def answered(rows: list[int], tokens: Tensor) -> list[Any]:
            with generating(self):
                return self.answers(self(tokens), {"text": [texts[i] for i in rows]})

        return in_batches(self, self.tokenizer, texts, self.tokenizer.between_ends, answered)


def shortened(text: str, *, width: int = 60) -> str:
    """Return the beginning of a text, at most `width` characters.

    Example:
        >>> shortened("a long story", width=8)
        'a long …'
    """
    text = one_line(text)
    return text if len(text) <= width else f"{text[: width - 1]}…"
