"""The base class of tasks with one answer for a whole text or image: model, evaluation and predictions."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torchmetrics import Metric
from typing_extensions import override

import attnkit
from attnkit.models.base import generating
from attnkit.registry import (
    ConfigurationError,
    EmbeddingSpec,
    InitSpec,
    OptimizerSpec,
    ScheduleSpec,
    StackSpec,
    TokenizerSpec,
    nearest,
    require_at_least,
)
from attnkit.task.config import TaskConfig, default, trained_tokenizer
from attnkit.task.evaluation import Direction, EvaluatedTask, spread
from attnkit.task.loss import Sums
from attnkit.task.metrics import Mean
from attnkit.task.unknown import warn_of_unknown
from attnkit.tokenizer import Tokenizer

BATCH = 64  # texts that `predict_texts` reads at once


@dataclass(frozen=True, kw_only=True)
class PooledConfig(TaskConfig):
    """The options of tasks with one answer for a whole text or image.

    Args:
        stack: An encoder or a decoder stack.
        tokenizer: Spec of the trained tokenizer of texts, or None for images (default: the data module's `tokenizer_spec`).
        image_shape: Channels, height and width of images, or None for texts (default: the data module's).
        embedding: The embedding: one that reads tokens, or `patch` for images.
        pooling: Which vector represents the whole: `class_token`, the first one (bos is BERT's [CLS]); `mean` over all; `last`.
        pooler: Whether BERT's dense layer with tanh comes before the output map.
        init: How the parameters of a new model are drawn.
        samples: Predictions printed after a validation.
    """

    stack: StackSpec
    tokenizer: TokenizerSpec | None = None
    image_shape: list[int] | None = None
    embedding: EmbeddingSpec = "token"
    pooling: Literal["class_token", "mean", "last"] = "mean"
    pooler: bool = False
    init: InitSpec = "default"
    optimizer: OptimizerSpec = default("adamw", lr=1e-3, weight_decay=0.01)
    schedule: ScheduleSpec = default("linear", warmup_steps=0.1)
    metrics: Sequence[str]
    samples: int = 8

    def __post_init__(self) -> None:
        require_at_least(0, samples=self.samples)


class PooledTask(EvaluatedTask):
    """A task with one answer for a whole text or image.

    A subclass defines the number of outputs (`outputs`), the loss (`sums`), the metrics (`metric` and `metric_directions`), predictions
    (`answer`), and how to show one (`sample_line`).

    A batch is a mapping of `tokens` [B, T] (bos, tokens, eos, padding) or `image` [B, C, H, W], `label` [B], and for evaluation and
    prediction `text`, the names of the inputs. If there are fewer labels and texts than inputs, the remaining inputs are ignored.

    Its `metrics` are names, at least one; the first selects the best checkpoint.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, or the tokenizer is not trained.
    """

    config: PooledConfig
    metric_directions: ClassVar[Mapping[str, Direction]]

    @override
    def derive(self) -> None:
        metrics = self.config.metrics
        if isinstance(metrics, str) or not metrics:
            raise ConfigurationError(f"metrics must be a list of names, as in [{metrics or next(iter(self.metric_directions))}]")
        for name in metrics:
            if name not in self.metric_directions:
                known = ", ".join(self.metric_directions)
                raise ConfigurationError(f"unknown metric {name!r}.{nearest(name, self.metric_directions)} Names: {known}.")
        self.tokenizer = None if self.config.tokenizer is None else trained_tokenizer(self.config.tokenizer, "tokenizer")
        super().derive()

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of outputs of the model for an input."""

    @abstractmethod
    def sums(self, outputs: Tensor, label: Tensor, *, smooth: bool) -> Sums:
        """Return the sums of the outputs for a batch with labels [B]; `smooth` in training."""

    @abstractmethod
    def metric(self, name: str) -> Metric:
        """Return the metric of a name; it is updated with the outputs for a batch and labels [B]."""

    @abstractmethod
    def answer(self, text: str, outputs: Tensor) -> Any:
        """Return the prediction for an input of that name, from its row of the outputs, on the CPU."""

    @abstractmethod
    def sample_line(self, prediction: Any, label: Any) -> str:
        """Return a line with a prediction and the true label."""

    @property
    @override
    def monitor(self) -> tuple[str, Direction]:
        return f"val/{self.config.metrics[0]}", self.metric_directions[self.config.metrics[0]]

    @override
    def new_metrics(self) -> dict[str, Metric]:
        return {"loss": Mean(), **{name: self.metric(name) for name in self.config.metrics}}

    @property
    @override
    def printed(self) -> Sequence[str]:
        return self.config.metrics

    @override
    def samples(self) -> list[str]:
        return [self.sample_line(prediction, label) for prediction, label in spread(self.shown, self.config.samples)]

    @override
    def build_model(self) -> nn.Module:
        model = attnkit.compose(
            stack=attnkit.stacks.resolve(self.config.stack),
            vocab_size=None if self.tokenizer is None else len(self.tokenizer),
            image_shape=self.config.image_shape,
            num_classes=self.outputs,
            pooling=self.config.pooling,
            pooler=self.config.pooler,
            embedding=self.config.embedding,
            init=self.config.init,
        )
        assert isinstance(model, nn.Module)
        return model

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs [B, C] for tokens [B, T], padded with `pad_id`, or images [B, C, H, W]."""
        outputs: Tensor = self.model(inputs, None if self.tokenizer is None else inputs != Tokenizer.pad_id)
        return outputs

    @override
    def objective(self, batch: dict[str, Any]) -> Sums:
        if "label" not in batch:
            raise ConfigurationError("there are training texts without labels, which only masked_lm can use: leave data.unlabelled out")
        label = batch["label"]
        return self.sums(self(self._inputs(batch))[: len(label)], label, smooth=True)

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[Any]:
        outputs = self(self._inputs(batch))[: len(batch["text"])].float().cpu()
        return [self.answer(text, row) for text, row in zip(batch["text"], outputs, strict=True)]

    def predict_texts(self, texts: Sequence[str]) -> list[Any]:
        """Return the prediction for each text; it does not depend on how texts are batched.

        Raises:
            TypeError: `texts` is a single string.
            ConfigurationError: The model reads images.
        """
        if isinstance(texts, str):
            raise TypeError(f"predict_texts takes a list of texts, as in predict_texts([{texts!r}])")
        if self.tokenizer is None:
            raise ConfigurationError("this model reads images: call the task with a batch of them, or use `attnkit predict`")
        self.configure_model()
        warn_of_unknown(self.tokenizer, texts)
        ids = [torch.tensor([Tokenizer.bos_id, *self.tokenizer.encode(text), Tokenizer.eos_id]) for text in texts]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # similar lengths together: less padding
        found: dict[int, Any] = {}
        with generating(self):
            for start in range(0, len(order), BATCH):
                rows = order[start : start + BATCH]
                tokens = pad_sequence([ids[i] for i in rows], batch_first=True, padding_value=Tokenizer.pad_id)
                outputs = self(tokens.to(self.device)).float().cpu()
                found.update((i, self.answer(texts[i], row)) for i, row in zip(rows, outputs, strict=True))
        return [found[i] for i in range(len(texts))]

    def _inputs(self, batch: dict[str, Any]) -> Tensor:
        return cast(Tensor, batch["image" if self.tokenizer is None else "tokens"])

    @override
    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> None:
        label = batch["label"]
        outputs: Tensor = self(self._inputs(batch))[: len(label)]
        sums = self.sums(outputs, label, smooth=False)
        answers = (outputs.float(), label.float() if label.is_floating_point() else label)
        metrics = self.metrics(stage)
        updates = {name: answers if len(label) > 0 or _keeps_values(metrics[name]) else None for name in self.config.metrics}
        self.log_metrics(stage, {"loss": (sums.nll, sums.targets), **updates}, rows=len(label), shown=self.config.metrics[:1])
        if stage == "val":
            rows = zip(batch["text"], outputs.float().cpu(), label.tolist(), strict=True)
            self.shown += [(self.answer(text, row), true) for text, row, true in list(rows)[: self.config.samples]]


def _keeps_values(metric: Metric) -> bool:
    """Return whether a metric keeps all values: gathering needs a tensor of the right dtype on each rank, even an empty one."""
    return any(isinstance(state, list) for state in metric.metric_state.values())


def one_line(text: str) -> str:
    """Return a text without tabs and line breaks, so that a prediction is one line of a table.

    Example:
        >>> one_line("so\\tgood,\\nreally")
        'so good, really'
    """
    return " ".join(text.split()) if any(c in text for c in "\t\r\n") else text


def shortened(text: str, *, width: int = 60) -> str:
    """Return the beginning of a text, at most `width` characters.

    Example:
        >>> shortened("a long story", width=8)
        'a long …'
    """
    text = one_line(text)
    return text if len(text) <= width else f"{text[: width - 1]}…"
