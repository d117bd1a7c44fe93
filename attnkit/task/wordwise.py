"""The base class of tasks with outputs for each word: model, evaluation and predictions."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import override

import attnkit
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
from attnkit.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class WordConfig(TaskConfig):
    """The options of tasks with outputs for each word.

    Args:
        stack: An encoder or a decoder stack.
        tokenizer: Spec of the trained tokenizer (default: the data module's `tokenizer_spec`).
        embedding: The embedding.
        init: How the parameters of a new model are drawn.
        samples: Predictions printed after a validation.
    """

    stack: StackSpec
    tokenizer: TokenizerSpec | None = None
    embedding: EmbeddingSpec = "token"
    init: InitSpec = "default"
    optimizer: OptimizerSpec = default("adamw", lr=1e-3, weight_decay=0.01)
    schedule: ScheduleSpec = default("linear", warmup_steps=0.1)
    metrics: Sequence[str]
    samples: int = 8

    def __post_init__(self) -> None:
        require_at_least(0, samples=self.samples)


class WordTask(EvaluatedTask):
    """A task with outputs for each word, at its first token.

    A subclass defines the number of outputs (`outputs`), the loss (`sums`), the metrics (`metric`, `metric_names` and `updates`),
    predictions (`answers`), and how to show one (`sample_line`). A batch is a `attnkit.data.words.WordBatch`.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, or the tokenizer is not trained.
    """

    config: WordConfig
    metric_names: ClassVar[Sequence[str]]

    @override
    def derive(self) -> None:
        metrics = self.config.metrics
        if isinstance(metrics, str) or not metrics:
            raise ConfigurationError(f"metrics must be a list of names, as in [{metrics or self.metric_names[0]}]")
        for name in metrics:
            if name not in self.metric_names:
                known = ", ".join(self.metric_names)
                raise ConfigurationError(f"unknown metric {name!r}.{nearest(name, self.metric_names)} Names: {known}.")
        self.tokenizer = trained_tokenizer(self.config.tokenizer, "tokenizer")
        super().derive()

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of outputs of the model for a token."""

    @abstractmethod
    def sums(self, outputs: Tensor, batch: Mapping[str, Any]) -> Sums:
        """Return the sums of the outputs [B, T, C] for a batch."""

    @abstractmethod
    def metric(self, name: str) -> Metric:
        """Return the metric of a name."""

    @abstractmethod
    def updates(self, outputs: Tensor, batch: Mapping[str, Any]) -> Mapping[str, Sequence[Any] | None]:
        """Return the arguments for the update of each metric; None leaves it as it is."""

    @abstractmethod
    def answers(self, outputs: Tensor, batch: Mapping[str, Any]) -> list[Any]:
        """Return the prediction for each text of a batch, from the outputs [B, T, C]."""

    @abstractmethod
    def sample_line(self, prediction: Any, truth: Any) -> str:
        """Return a line with a prediction and the truth."""

    @abstractmethod
    def truths(self, batch: Mapping[str, Any]) -> list[Any]:
        """Return the true answer of each text of a batch, as `sample_line` takes it."""

    @property
    @override
    def monitor(self) -> tuple[str, Direction]:
        return f"val/{self.config.metrics[0]}", "max"

    @override
    def new_metrics(self) -> dict[str, Metric]:
        return {"loss": Mean(), **{name: self.metric(name) for name in self.config.metrics}}

    @property
    @override
    def printed(self) -> Sequence[str]:
        return self.config.metrics

    @override
    def samples(self) -> list[str]:
        return [self.sample_line(prediction, truth) for prediction, truth in spread(self.shown, self.config.samples)]

    @override
    def build_model(self) -> nn.Module:
        model = attnkit.compose(
            stack=attnkit.stacks.resolve(self.config.stack),
            vocab_size=len(self.tokenizer),
            num_classes=self.outputs,
            pooling="none",
            embedding=self.config.embedding,
            init=self.config.init,
        )
        assert isinstance(model, nn.Module)
        return model

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        """Return the outputs [B, T, C] for tokens [B, T], padded with `pad_id`."""
        outputs: Tensor = self.model(tokens, tokens != Tokenizer.pad_id)
        return outputs

    @override
    def objective(self, batch: dict[str, Any]) -> Sums:
        return self.sums(self(batch["tokens"]), batch)

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[Any]:
        return self.answers(self(batch["tokens"]).float(), batch)

    @override
    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> None:
        outputs = self(batch["tokens"]).float()
        sums = self.sums(outputs, batch)
        updates = {"loss": (sums.nll, sums.targets), **self.updates(outputs, batch)}
        self.log_metrics(stage, updates, rows=len(outputs), shown=self.config.metrics[:1])
        if stage == "val":
            self.shown += list(zip(self.answers(outputs, batch), self.truths(batch), strict=True))[: self.config.samples]
