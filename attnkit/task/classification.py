"""Classification: predicting the class of a text or an image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision, MulticlassRecall
from typing_extensions import override

from attnkit.registry import ConfigurationError, keywords_of, tasks
from attnkit.task.config import require_smoothing
from attnkit.task.loss import Sums, cross_entropy
from attnkit.task.pooled import PooledConfig, PooledTask, one_line, shortened

METRICS: dict[str, tuple[type[Metric], Literal["micro", "macro", "weighted"]]] = {
    "accuracy": (MulticlassAccuracy, "micro"),
    "f1": (MulticlassF1Score, "macro"),
    "weighted_f1": (MulticlassF1Score, "weighted"),
    "precision": (MulticlassPrecision, "macro"),
    "recall": (MulticlassRecall, "macro"),
}


class Prediction(NamedTuple):
    """The class of a text, or of the image of that name, and its probability. As a string: all three, separated by tabs."""

    text: str
    label: str
    probability: float

    def __str__(self) -> str:
        return f"{one_line(self.text)}\t{self.label}\t{self.probability:.4f}"


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(PooledConfig):
    """The options of `classification`.

    Args:
        classes: The names of the classes, by their ids (default: the data module's).
        label_smoothing: Probability mass that is spread over all classes, at least 0 and below 1.
        metrics: `accuracy`, `f1` (the mean of the classes' F1: macro), `weighted_f1` (their mean by frequency), `precision`, `recall`
            (both macro). The first one selects the best checkpoint.
    """

    classes: list[str] | None = None
    label_smoothing: float = 0.0
    metrics: Sequence[str] = ("accuracy", "f1")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_smoothing(self.label_smoothing)
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ConfigurationError(f"classes must be at least two, and distinct, but are {list(self.classes)}")


@tasks.register("classification")
class Classification(PooledTask):
    """One class for a whole text or image: sentiment, topic, language, digits.

    A batch is a mapping of `tokens` [B, T] (bos, tokens, eos, padding) or `image` [B, C, H, W], `label` [B] (int64), and for evaluation
    and prediction `text`, what the inputs are called.

    Logged: `train/loss`; in validation (`val/...`) and test (`test/...`) `loss` and the chosen `metrics`. Loss is the negative
    log-likelihood per example in nats, without label smoothing. Metrics are from 0 to 1.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, or the tokenizer is not trained, or there are fewer than two classes.

    Example:
        >>> import attnkit
        >>> task = Classification(
        ...     stack={"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2}, classes=["bad", "good"],
        ...     tokenizer=attnkit.tokenizers.build("word").train(["not so good"]).spec)
        >>> [prediction.label in task.classes for prediction in task.predict_texts(["good", "not good"])]
        [True, True]
        >>> print(Prediction("so good", "good", 0.98765))
        so good	good	0.9877
    """

    from_data: ClassVar = {"tokenizer": "tokenizer_spec", "image_shape": "image_shape", "classes": "classes"}
    metric_directions: ClassVar = dict.fromkeys(METRICS, "max")

    config: ClassificationConfig

    @keywords_of(ClassificationConfig)
    def __init__(self, config: ClassificationConfig) -> None:
        super().__init__(config)

    @property
    def classes(self) -> list[str]:
        """The names of the classes, by their ids."""
        if self.config.classes is None:
            raise ConfigurationError("there are no classes: pass their names")
        return self.config.classes

    @property
    @override
    def outputs(self) -> int:
        return len(self.classes)

    @override
    def sums(self, outputs: Tensor, label: Tensor, *, smooth: bool) -> Sums:
        if label.is_floating_point():
            raise ConfigurationError("the labels of these data are numbers, not classes; use task regression, or other labels")
        return cross_entropy(outputs, label, label_smoothing=self.config.label_smoothing if smooth else 0.0, pad_id=None)

    @override
    def metric(self, name: str) -> Metric:
        kind, average = METRICS[name]
        return kind(num_classes=self.outputs, average=average)

    @override
    def answer(self, text: str, outputs: Tensor) -> Prediction:
        probability, best = outputs.softmax(-1).max(-1)
        return Prediction(text, self.classes[int(best)], float(probability))

    @override
    def sample_line(self, prediction: Any, label: Any) -> str:
        right = prediction.label == self.classes[label]
        mark, truth = ("ok", "") if right else ("wrong", f"  ({self.classes[label]})")
        return f"{mark:<5}  {shortened(prediction.text)} -> {prediction.label} {prediction.probability:.2f}{truth}"
