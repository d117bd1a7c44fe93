"""Metrics of generated texts by source and target length, to show whether a model generalises to longer texts."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torchmetrics import Metric
from typing_extensions import override

from attnkit.task.metrics import generation_metric
from attnkit.task.seq2seq import Seq2Seq
from attnkit.worker.folder import SPECIAL

SIDES = {"source": "src", "target": "tgt"}
"""The tensor of each side in a batch."""

Table = list[dict[str, float]]


class Lengths(Callback):
    """Keeps the metrics of generated texts by length, of the last evaluation. Tasks that do not generate have none.

    With several ranks it keeps none, since each rank sees only a part.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._count: dict[str, Counter[int]] = {side: Counter() for side in SIDES}
        self._metrics: dict[str, dict[int, dict[str, Metric]]] = {side: defaultdict(dict) for side in SIDES}

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clear()

    @override
    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._add(trainer, pl_module, outputs, batch)

    on_test_epoch_start, on_test_batch_end = on_validation_epoch_start, on_validation_batch_end

    def _add(self, trainer: Trainer, task: LightningModule, outputs: Any, batch: Any) -> None:
        hypotheses = outputs.get("hypotheses") if isinstance(outputs, Mapping) else None
        if not hypotheses or trainer.world_size > 1 or not isinstance(task, Seq2Seq):
            return
        for side, tensor in SIDES.items():
            rows: dict[int, list[int]] = defaultdict(list)
            for row, length in enumerate((batch[tensor] != 0).sum(1).tolist()):
                rows[length - SPECIAL[side]].append(row)
            for length, chosen in rows.items():
                self._count[side][length] += len(chosen)
                metrics = self._metrics[side][length]
                for name in task.config.metrics:
                    if name not in metrics:
                        metrics[name] = generation_metric(name, tokenize=task.reference_tokens)
                    metrics[name].update([hypotheses[i] for i in chosen], [batch["references"][i] for i in chosen])

    def tables(self) -> dict[str, Table]:
        """Return for each side (`source`, `target`) a row for each length: `length` in tokens, `count`, and each metric."""
        return {
            side: [
                {"length": n, "count": count, **{name: float(m.compute()) for name, m in self._metrics[side][n].items()}}
                for n, count in sorted(self._count[side].items())
            ]
            for side in SIDES
            if self._count[side]
        }
