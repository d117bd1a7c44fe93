"""The base class of tasks whose labels are classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision, MulticlassRecall
from typing_extensions import override

from attnkit.registry import ConfigurationError
from attnkit.task.config import require_smoothing
from attnkit.task.labelling import LabellingConfig, LabellingTask
from attnkit.task.loss import Sums, cross_entropy


@dataclass(frozen=True, kw_only=True)
class ClassConfig(LabellingConfig):
    """The options of tasks whose labels are classes.

    Args:
        classes: The names of the classes, in the order of their ids (default: the data module's).
        label_smoothing: Probability mass spread over all classes, at least 0 and below 1.
        metrics: `accuracy`, `f1` (macro: the mean over classes), `weighted_f1` (the mean weighted by class frequency), `precision`,
            `recall` (both macro). The first one selects the best checkpoint.
    """

    classes: list[str] | None = None
    label_smoothing: float = 0.0
    metrics: Sequence[str] = ("accuracy", "f1")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_smoothing(self.label_smoothing)
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ConfigurationError(f"classes must be at least two and distinct, but are {list(self.classes)}")


class ClassTask(LabellingTask):
    """A task whose labels are classes (int64)."""

    config: ClassConfig
    metric_kinds: ClassVar = {
        "accuracy": lambda classes: MulticlassAccuracy(classes, average="micro"),
        "f1": lambda classes: MulticlassF1Score(classes, average="macro"),
        "weighted_f1": lambda classes: MulticlassF1Score(classes, average="weighted"),
        "precision": lambda classes: MulticlassPrecision(classes, average="macro"),
        "recall": lambda classes: MulticlassRecall(classes, average="macro"),
    }

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of their ids."""
        if self.config.classes is None:
            raise ConfigurationError("there are no classes: pass their names")
        return self.config.classes

    @property
    @override
    def outputs(self) -> int:
        return len(self.classes)

    def scored(self, outputs: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the outputs [N, C] and the labels [N] that are scored."""
        return outputs, batch["label"]

    @override
    def sums(self, outputs: Tensor, batch: Mapping[str, Any]) -> Sums:
        if batch["label"].is_floating_point():
            raise ConfigurationError("the labels of these data are numbers, not classes; use task regression, or other labels")
        return cross_entropy(*self.scored(outputs, batch), label_smoothing=self.config.label_smoothing, pad_id=None)

    @override
    def updates(self, outputs: Tensor, batch: Mapping[str, Any]) -> Mapping[str, Sequence[Any] | None]:
        scored = self.scored(outputs, batch)
        return dict.fromkeys(self.config.metrics, scored if len(scored[0]) > 0 else None)
