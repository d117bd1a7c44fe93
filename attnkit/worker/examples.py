"""Sums of metrics over the examples of the last evaluation, from which a report derives the standard error due to the test examples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from attnkit.task.evaluation import EvaluatedTask
from attnkit.task.metrics import TextQuotient, generation_metric
from attnkit.task.seq2seq import Seq2Seq

GROUPS = 200
"""The number of random groups in which examples are summed, the same in all runs: 200 sums are enough to know the spread."""

Sums = tuple[Sequence[float], Sequence[float]]
"""For each group, the numerator and the denominator of a mean."""


class Examples(Callback):
    """Keeps the sums over examples, in the last evaluation, of metrics that are means.

    Nothing is kept for tasks that do not evaluate by example, nor in runs with several ranks, each of which sees only a part.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[float, float]]] = {}

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rows = {}
        if isinstance(pl_module, EvaluatedTask) and trainer.world_size == 1:
            pl_module.by_row = []

    @override
    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not isinstance(pl_module, EvaluatedTask) or pl_module.by_row is None:
            return
        for sums in pl_module.by_row:
            for name, pair in sums.items():
                self._rows.setdefault(name, []).extend(zip(*(one.tolist() for one in pair), strict=True))
        pl_module.by_row = []
        if isinstance(pl_module, Seq2Seq) and outputs["hypotheses"]:
            self._add_texts(pl_module, outputs["hypotheses"], batch["references"])

    on_test_epoch_start, on_test_batch_end = on_validation_epoch_start, on_validation_batch_end

    def _add_texts(self, task: Seq2Seq, hypotheses: Sequence[str], references: Sequence[Any]) -> None:
        for name in task.config.metrics:
            metric = generation_metric(name, tokenize=task.reference_tokens)
            if isinstance(metric, TextQuotient):
                counts = (metric.counts(*pair) for pair in zip(hypotheses, references, strict=True))
                self._rows.setdefault(name, []).extend((float(total), float(count)) for total, count in counts)

    def sums(self) -> dict[str, Sums]:
        """Return the sums of each metric by group of examples; a metric with a sum that is not finite is left out."""
        found: dict[str, Sums] = {}
        for name, rows in self._rows.items():
            count = min(len(rows), GROUPS)
            group = np.random.default_rng(0).permutation(len(rows)) % count
            totals = [np.bincount(group, weights=column, minlength=count) for column in np.array(rows, dtype=np.float64).T]
            if all(np.isfinite(total).all() for total in totals):
                top, bottom = ([float(f"{value:.7g}") for value in total] for total in totals)
                found[name] = (top, bottom)
        return found
