"""The base class of tasks with metrics: updates, logging, and the output printed after a validation."""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, cast

from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import override

from attnkit.lightning_internals import averaged
from attnkit.task.base import Task
from attnkit.task.loss import target_nll
from attnkit.task.metrics import Metrics

Direction = Literal["min", "max"]
T = TypeVar("T")


RowSums = dict[str, tuple[Tensor, Tensor]]
"""For each metric that is a mean: the sum over each row of a batch and the number of values in it, both [B]."""


class EvaluatedTask(Task):
    """A task with metrics in validation (`val/...`) and test (`test/...`), the same in both.

    A subclass implements `new_metrics`, and `evaluate`, which passes updates to `log_metrics`. After a validation, the metrics in
    `printed` are printed, followed by the `samples`; if `printed` is empty, nothing is printed.

    Attributes:
        chosen: Names of metrics; the first one, or the loss if empty, selects the best checkpoint.
        by_row: A list that subclasses which support it append the row sums of each evaluation batch to (default: None, to collect none).
    """

    chosen: Sequence[str] = ()
    by_row: list[RowSums] | None = None

    @override
    def derive(self) -> None:
        self.evaluation = Metrics({stage: nn.ModuleDict(self.new_metrics()) for stage in ("val", "test")})
        self.shown: list[Any] = []  # outputs of the validation

    @abstractmethod
    def new_metrics(self) -> dict[str, Metric]:
        """Return new metrics for a stage, by name."""

    @abstractmethod
    def evaluate(self, batch: Any, batch_idx: int, stage: str) -> Any:
        """Update and log the metrics of a stage (`val` or `test`); the return value goes to callbacks."""

    @property
    def monitor(self) -> tuple[str, Direction]:
        """The metric that selects the best checkpoint, and whether smaller or larger is better."""
        name = next(iter(self.chosen), "loss")
        return f"val/{name}", "min" if self.metrics("val")[name].higher_is_better is False else "max"

    @property
    def printed(self) -> Sequence[str]:
        """The metrics that are printed after a validation; by default, the chosen ones."""
        return self.chosen

    def samples(self) -> Iterable[str]:
        """Return lines with outputs, printed after a validation."""
        return ()

    def metrics(self, stage: str) -> dict[str, Metric]:
        """Return the metrics of a stage by name."""
        return {name: cast(Metric, metric) for name, metric in cast(nn.ModuleDict, self.evaluation[stage]).items()}

    def log_metrics(self, stage: str, updates: Mapping[str, Sequence[Any] | None], *, rows: int, shown: Collection[str]) -> None:
        """Update and log the metrics of a stage, `val` or `test`; those in `shown` appear in the progress bar.

        `updates` holds the arguments of each metric's update, or None to leave the metric unchanged.
        """
        metrics = self.metrics(stage)
        for name, values in updates.items():
            if values is not None:
                metrics[name].update(*values)
            self.log(f"{stage}/{name}", metrics[name], batch_size=rows, prog_bar=name in shown)

    @override
    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.evaluate(batch, batch_idx, "val")

    @override
    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return self.evaluate(batch, batch_idx, "test")

    @override
    def on_validation_epoch_start(self) -> None:
        self.shown = []
        self._reset("val")

    @override
    def on_test_epoch_start(self) -> None:
        self._reset("test")

    def _reset(self, stage: str) -> None:
        """Reset the metrics: those that Lightning reset in inference mode cannot be updated outside it, as in a fit."""
        for metric in self.metrics(stage).values():
            metric.reset()

    @override
    def on_validation_epoch_end(self) -> None:
        """Print the metrics and the samples."""
        if self.trainer.sanity_checking or not self.printed:
            return
        metrics = self.metrics("val")
        values = ", ".join(f"{name} {metrics[name].compute():.4g}" for name in self.printed)  # on every rank, as it is reduced over ranks
        title = f"Step {self.trainer.global_step}" if self.trainer.global_step else "Validation"  # 0 outside a fit
        with averaged(self.trainer, self):
            samples = [f"  {line}" for line in self.samples()]
        self.print("\n".join([f"{title}: {values}", *samples]))


class Scores(NamedTuple):
    """The quality of logits as predictions of the targets of a batch, from one pass over them; each [B, T], with 0 for padding."""

    nll: Tensor  # the negative log-likelihood of each target
    right: Tensor  # whether the target has the largest logit
    real: Tensor  # whether the target is not padding

    def updates(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return, for `loss`, `perplexity` and `token_accuracy`, the sum over the targets and the number of targets."""
        nll, count = self.nll.sum(), self.real.sum()
        return {"loss": (nll, count), "perplexity": (nll, count), "token_accuracy": (self.right.sum(), count)}

    def by_row(self) -> RowSums:
        """Return the sums of `loss` and `token_accuracy` over the targets of each row."""
        count = self.real.sum(1)
        return {"loss": (self.nll.sum(1), count), "token_accuracy": (self.right.sum(1), count)}


def scored(logits: Tensor, targets: Tensor, *, pad_id: int) -> Scores:
    """Return the scores of logits [B, T, V] as predictions of the targets [B, T].

    Example:
        >>> import torch
        >>> nll, count = scored(torch.zeros(2, 3, 5), torch.tensor([[4, 2, 0], [3, 0, 0]]), pad_id=0).by_row()["loss"]
        >>> [round(x, 3) for x in (nll / count).tolist()], count.tolist()
        ([1.609, 1.609], [2, 1])
    """
    real = targets != pad_id
    return Scores(nll=target_nll(logits, targets, pad_id=pad_id), right=(logits.argmax(-1) == targets) & real, real=real)


def spread(rows: Sequence[T], count: int) -> Sequence[T]:
    """Return at most `count` of the rows, evenly spaced.

    Example:
        >>> spread(range(10), 3)
        range(0, 10, 4)
    """
    return rows[:: max(1, -(-len(rows) // max(1, count)))]
