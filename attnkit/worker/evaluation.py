"""Results of a run's last evaluation besides means: by example and, for generated texts, by length.

From the sums over examples, a report derives the standard error due to the test examples; metrics by length show whether a model
generalises to longer texts.
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from torchmetrics import Metric
from typing_extensions import override

from attnkit.task.evaluation import EvaluatedTask
from attnkit.task.metrics import TextQuotient, generation_metric
from attnkit.task.seq2seq import Seq2Seq
from attnkit.worker.folder import SPECIAL
from attnkit.worker.recorder import finite

GROUPS = 200
"""The number of random groups, the same in all runs, over which examples are summed: 200 sums suffice to estimate the spread."""

SIDES = {"source": "src", "target": "tgt"}  # the key of each side's tensor in a batch
Sums = tuple[Sequence[float], Sequence[float]]  # the numerators and denominators of a mean, one per group
Table = list[dict[str, float | None]]


class Evaluation(Callback):
    """Keeps, for the last evaluation, the sums over examples of metrics that are means, and the metrics of generated texts by length.

    Neither is kept in runs with several ranks, each of which sees only a part of the examples. Tasks that do not evaluate by example have
    no sums, and tasks that do not generate have no metrics by length. Checkpoints contain both, because a run that continues after
    its last validation does not validate again. Sanity checks do not count.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._restored: dict[str, Any] | None = None  # the results in a checkpoint, until the next evaluation
        self._rows: dict[str, list[tuple[int, float, float]]] = defaultdict(list)  # the number of the example, and its sums
        self._texts: dict[int, Any] = {}  # the references of each example, if it has any
        self._count: dict[str, Counter[int]] = {side: Counter() for side in SIDES}
        self._metrics: dict[str, dict[int, dict[str, Metric]]] = {side: defaultdict(dict) for side in SIDES}

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self._clear()
        if isinstance(pl_module, EvaluatedTask) and trainer.world_size == 1:
            pl_module.by_row = []

    @override
    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not isinstance(pl_module, EvaluatedTask) or pl_module.by_row is None:
            return
        if "example" in batch:
            examples = batch["example"].tolist()
        else:  # another data module; its order numbers the examples
            examples = [(batch_idx << 32) + row for row in range(len(next(iter(batch.values()))))]
        for sums in pl_module.by_row:
            for name, pair in sums.items():
                self._rows[name].extend(zip(examples, *(one.tolist() for one in pair), strict=True))
        pl_module.by_row = []
        self._texts.update(zip(examples, batch.get("references", ()), strict=False))
        if isinstance(pl_module, Seq2Seq) and outputs["hypotheses"]:
            self._add_texts(pl_module, outputs["hypotheses"], batch, examples)

    on_test_epoch_start, on_test_batch_end = on_validation_epoch_start, on_validation_batch_end

    def _add_texts(self, task: Seq2Seq, hypotheses: Sequence[str], batch: Mapping[str, Any], examples: Sequence[int]) -> None:
        references = batch["references"]
        for name in task.config.metrics:
            metric = generation_metric(name, tokenize=task.reference_tokens)
            if isinstance(metric, TextQuotient):
                for example, *pair in zip(examples, hypotheses, references, strict=True):
                    total, count = metric.counts(*pair)
                    self._rows[name].append((example, float(total), float(count)))
        for side, tensor in SIDES.items():
            if batch[tensor].is_floating_point():  # images and sounds have no length in tokens
                continue
            rows: dict[int, list[int]] = defaultdict(list)
            for row, length in enumerate((batch[tensor] != 0).sum(1).tolist()):
                rows[length - SPECIAL[side]].append(row)
            for length, chosen in rows.items():
                self._count[side][length] += len(chosen)
                metrics = self._metrics[side][length]
                for name in task.config.metrics:
                    if name not in metrics:
                        metrics[name] = generation_metric(name, tokenize=task.reference_tokens)
                    metrics[name].update([hypotheses[i] for i in chosen], [references[i] for i in chosen])

    @override
    def state_dict(self) -> dict[str, Any]:
        return self.kept()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict

    def kept(self) -> dict[str, Any]:
        """Return `lengths`, `examples` and `example_set` of a run's result (`attnkit.worker.folder.Result`)."""
        if self._restored is not None:
            return self._restored
        return {"lengths": self.by_length(), "examples": self.sums(), "example_set": self.example_set()}

    def sums(self) -> dict[str, Sums]:
        """Return the sums of each metric by group of examples, without metrics that have a non-finite sum.

        An example is in the same group in every run, although the order of the batches depends on the data seed.
        """
        found: dict[str, Sums] = {}
        for name, rows in self._rows.items():
            count = min(len(rows), GROUPS)
            group = np.random.default_rng(0).permutation(len(rows)) % count
            columns = np.array([sums for _, *sums in sorted(rows)], dtype=np.float64).T
            totals = [np.bincount(group, weights=column, minlength=count) for column in columns]
            if all(np.isfinite(total).all() for total in totals):
                top, bottom = ([float(f"{value:.7g}") for value in total] for total in totals)
                found[name] = (top, bottom)
        return found

    def example_set(self) -> str:
        """Return a checksum of the examples: equal if runs were evaluated on the same examples, judging by numbers and references."""
        numbers = sorted({number for rows in self._rows.values() for number, *_ in rows})
        return f"{zlib.crc32(repr([(number, self._texts.get(number)) for number in numbers]).encode()):08x}"

    def by_length(self) -> dict[str, Table]:
        """Return, for each side (`source`, `target`), a row per length: `length` in tokens, `count` and each metric, None if not finite."""
        return {
            side: [
                {"length": n, "count": count, **finite({name: float(m.compute()) for name, m in self._metrics[side][n].items()})}
                for n, count in sorted(self._count[side].items())
            ]
            for side in SIDES
            if self._count[side]
        }
