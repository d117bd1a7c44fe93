"""The base class of tasks with one answer for a whole text or image: model, evaluation and predictions."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torchmetrics import Metric
from typing_extensions import override

import attnkit
from attnkit.models.base import generating
from attnkit.registry import ConfigurationError, nearest
from attnkit.task.arguments import trained_tokenizer
from attnkit.task.base import Task
from attnkit.task.loss import Sums
from attnkit.task.metrics import Mean
from attnkit.task.unknown import warn_of_unknown
from attnkit.tokenizer import Tokenizer

BATCH = 64  # texts that `predict_texts` reads at once

Direction = Literal["min", "max"]


class PooledTask(Task):
    """A task with one answer for a whole text or image.

    A subclass defines the number of outputs (`outputs`), the loss (`sums`), the metrics (`metric` and `metric_directions`), predictions
    (`answer`), and how to show one (`sample_line`).

    A batch is a mapping of `tokens` [B, T] (bos, tokens, eos, padding) or `image` [B, C, H, W], `label` [B], and for evaluation and
    prediction `text`, the names of the inputs. If there are fewer labels and texts than inputs, the remaining inputs are ignored.

    It declares `stack`, `tokenizer`, `image_shape`, `embedding`, `pooling`, `pooler`, `metrics` (names of metrics, at least one; the first
    selects the best checkpoint) and `samples` (predictions printed after a validation) among its arguments.

    Args:
        arguments: The subclass's arguments, as of `Task`.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, or the tokenizer is not trained.
    """

    metric_directions: ClassVar[Mapping[str, Direction]]

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        metrics: Sequence[str] = arguments["metrics"]
        self.samples: int = arguments["samples"]
        if isinstance(metrics, str) or not metrics:
            raise ConfigurationError(f"metrics must be a list of names, as in [{metrics or next(iter(self.metric_directions))}]")
        for name in metrics:
            if name not in self.metric_directions:
                known = ", ".join(self.metric_directions)
                raise ConfigurationError(f"unknown metric {name!r}.{nearest(name, self.metric_directions)} Names: {known}.")
        if self.samples < 0:
            raise ConfigurationError(f"samples must be at least 0, but is {self.samples}")
        self.stack, self.embedding = arguments["stack"], arguments["embedding"]
        self.pooling, self.pooler = arguments["pooling"], arguments["pooler"]
        tokenizer = arguments["tokenizer"]
        self.tokenizer = None if tokenizer is None else trained_tokenizer(tokenizer, "tokenizer")
        self.image_shape = arguments["image_shape"]
        self.metric_names = tuple(metrics)
        self._shown: list[tuple[Any, Any]] = []

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
    def monitor(self) -> tuple[str, Direction]:
        """The metric that selects the best checkpoint, and whether smaller or larger is better."""
        return f"val/{self.metric_names[0]}", self.metric_directions[self.metric_names[0]]

    def evaluation_metrics(self) -> nn.ModuleDict:
        """Return the metrics of validation and test. A subclass keeps them as `evaluation`."""
        return nn.ModuleDict(
            {stage: nn.ModuleDict({"loss": Mean(), **{name: self.metric(name) for name in self.metric_names}}) for stage in ("val", "test")}
        )

    @override
    def build_model(self) -> nn.Module:
        model = attnkit.compose(
            stack=attnkit.stacks.resolve(self.stack),
            vocab_size=None if self.tokenizer is None else len(self.tokenizer),
            image_shape=self.image_shape,
            num_classes=self.outputs,
            pooling=self.pooling,
            pooler=self.pooler,
            embedding=self.embedding,
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
    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        outputs = self._evaluate(batch, "val")
        rows = zip(batch["text"], outputs.float().cpu(), batch["label"].tolist(), strict=True)
        self._shown += [(self.answer(text, row), label) for text, row, label in list(rows)[: self.samples]]

    @override
    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._evaluate(batch, "test")

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[Any]:
        outputs = self(self._inputs(batch))[: len(batch["text"])].float().cpu()
        return [self.answer(text, row) for text, row in zip(batch["text"], outputs, strict=True)]

    @override
    def on_validation_epoch_start(self) -> None:
        self._shown = []

    @override
    def on_validation_epoch_end(self) -> None:
        """Print the metrics, and a few predictions, spread over the validation set."""
        if self.trainer.sanity_checking:
            return
        metrics = cast(nn.ModuleDict, cast(nn.ModuleDict, self.evaluation)["val"])
        values = {name: cast(Metric, metrics[name]).compute() for name in self.metric_names}  # on every rank: it is reduced over them
        chosen = self._shown[:: max(1, -(-len(self._shown) // max(1, self.samples)))]
        self.print_validation(values, [f"  {self.sample_line(prediction, label)}" for prediction, label in chosen])

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

    def _evaluate(self, batch: dict[str, Any], stage: str) -> Tensor:
        """Update and log the metrics of a stage; return the model's outputs [B, C] for inputs with labels."""
        label = batch["label"]
        outputs: Tensor = self(self._inputs(batch))[: len(label)]
        sums = self.sums(outputs, label, smooth=False)
        for name, metric in cast(nn.ModuleDict, cast(nn.ModuleDict, self.evaluation)[stage]).items():
            if name == "loss":
                cast(Metric, metric).update(sums.nll, sums.targets)
            elif len(label) > 0 or _keeps_values(cast(Metric, metric)):
                cast(Metric, metric).update(outputs.float(), label.float() if label.is_floating_point() else label)
            self.log(f"{stage}/{name}", cast(Metric, metric), batch_size=len(label), prog_bar=name == self.metric_names[0])
        return outputs


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
