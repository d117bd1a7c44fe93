"""Classification: predicting the class of a text or an image."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision, MulticlassRecall
from typing_extensions import override

from attnkit.registry import ConfigurationError, EmbeddingSpec, OptimizerSpec, ScheduleSpec, StackSpec, TokenizerSpec, tasks
from attnkit.strategy import ActivationCheckpointing
from attnkit.task.arguments import require_smoothing
from attnkit.task.loss import Sums, cross_entropy
from attnkit.task.pooled import PooledTask, one_line, shortened

_METRICS: dict[str, tuple[type[Metric], Literal["micro", "macro", "weighted"]]] = {
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


@tasks.register("classification")
class Classification(PooledTask):
    """One class for a whole text or image: sentiment, topic, language, digits.

    A batch is a mapping of `tokens` [B, T] (bos, tokens, eos, padding) or `image` [B, C, H, W], `label` [B] (int64), and for evaluation
    and prediction `text`, what the inputs are called.

    Logged: `train/loss`; in validation (`val/...`) and test (`test/...`) `loss` and the chosen `metrics`. Loss is the negative
    log-likelihood per example in nats, without label smoothing. Metrics are from 0 to 1.

    Args:
        stack: An encoder or a decoder stack.
        tokenizer: Spec of the trained tokenizer of texts (a tokenizer's `.spec`), or None for images.
        image_shape: Channels, height and width of images, or None for texts.
        classes: The names of the classes, by their ids.
        embedding: The embedding: one that reads tokens, or `patch` for images.
        pooling: Which vector represents the whole: `class_token`, the first one (bos is BERT's [CLS]); `mean` over all; `last`.
        pooler: Whether BERT's dense layer with tanh comes before the output map.
        label_smoothing: Probability mass that is spread over all classes, at least 0 and below 1.
        optimizer: The optimizer.
        schedule: The learning rate over the optimizer's steps.
        metrics: `accuracy`, `f1` (the mean of the classes' F1: macro), `weighted_f1` (their mean by frequency), `precision`, `recall`
            (both macro). The first one selects the best checkpoint.
        init_from: A checkpoint whose embedding and stack initialise the model, such as a pretrained encoder; what does not fit is new.
        samples: Predictions printed after a validation.
        activation_checkpointing: What the backward pass recomputes to save memory: `none`, each `layer`, `mixer` (the part that grows
            with the square of the length), or `feed_forward`. Results are the same.
        compile: Whether torch.compile translates each layer for training. Results are the same up to rounding.

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
    metric_directions: ClassVar = dict.fromkeys(_METRICS, "max")

    def __init__(
        self,
        *,
        stack: StackSpec,
        tokenizer: TokenizerSpec | None = None,
        image_shape: list[int] | None = None,
        classes: list[str],
        embedding: EmbeddingSpec = "token",
        pooling: Literal["class_token", "mean", "last"] = "mean",
        pooler: bool = False,
        label_smoothing: float = 0.0,
        optimizer: OptimizerSpec = {"name": "adamw", "lr": 1e-3, "weight_decay": 0.01},  # noqa: B006
        schedule: ScheduleSpec = {"name": "linear", "warmup_steps": 0.1},  # noqa: B006
        metrics: Sequence[str] = ("accuracy", "f1"),
        init_from: str | None = None,
        samples: int = 8,
        activation_checkpointing: ActivationCheckpointing = "none",
        compile: bool = False,
    ) -> None:
        super().__init__(locals())
        require_smoothing(label_smoothing)
        if len(set(classes)) < max(2, len(classes)):
            raise ConfigurationError(f"classes must be at least two, and distinct, but are {list(classes)}")
        self.classes, self.label_smoothing = list(classes), label_smoothing
        self.evaluation = self.evaluation_metrics()
        self.require_buildable()

    @property
    @override
    def outputs(self) -> int:
        return len(self.classes)

    @override
    def sums(self, outputs: Tensor, label: Tensor, *, smooth: bool) -> Sums:
        if label.is_floating_point():
            raise ConfigurationError("the labels of these data are numbers, not classes; use task regression, or other labels")
        return cross_entropy(outputs, label, label_smoothing=self.label_smoothing if smooth else 0.0, pad_id=None)

    @override
    def metric(self, name: str) -> Metric:
        kind, average = _METRICS[name]
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
