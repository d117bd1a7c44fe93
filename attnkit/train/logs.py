"""The logs of a run, so that a resumed one writes on where its checkpoint was, without gaps and without duplicates."""

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from typing_extensions import override

from attnkit.files import atomic

METRICS = ExperimentWriter.NAME_METRICS_FILE
EVENTS = "events.out.tfevents*"
POSITION = "log_position"  # in a checkpoint


class Writer(ExperimentWriter):
    """Writes `metrics.csv`, and adds to one that is there. A kill at any moment costs the row that is being written, at the most.

    Attributes:
        rows: How many are in the file.
    """

    rows = 0

    @override
    def _check_log_dir_exists(self) -> None:
        path = Path(self.metrics_file_path)
        if path.exists():
            self.metrics_keys, rows = read_rows(path)
            self.rows = len(rows)

    @override
    def save(self) -> None:
        self.rows += len(self.metrics)
        super().save()

    @override
    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        path = Path(self.metrics_file_path)
        write_rows(path, fieldnames, read_rows(path)[1])


class RunLogger(CSVLogger):
    """Lightning's CSVLogger, but it goes on with the file of a run."""

    @property
    @rank_zero_experiment
    @override
    def experiment(self) -> Writer:
        """What writes the file."""
        if self._experiment is None:
            self._experiment = Writer(log_dir=self.log_dir)
        assert isinstance(self._experiment, Writer)
        return self._experiment


class LogPosition(Callback):
    """Writes into each checkpoint how much had been logged before it."""

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        position: dict[str, Any] = {}
        for logger in trainer.loggers if trainer.is_global_zero else ():
            logger.save()
            if isinstance(logger, RunLogger):
                position["rows"] = logger.experiment.rows
            elif isinstance(logger, TensorBoardLogger):
                logger.experiment.flush()
                position["events"] = {path.name: path.stat().st_size for path in Path(logger.log_dir).glob(EVENTS)}
        checkpoint[POSITION] = position


def cut_back(folder: Path, position: Mapping[str, Any]) -> None:
    """Take out of the logs in a run's folder what was logged after a checkpoint."""
    path = folder / METRICS
    if path.exists() and "rows" in position:
        names, rows = read_rows(path)
        write_rows(path, names, rows[: position["rows"]])
    for events in folder.glob(EVENTS):
        if events.name in position.get("events", {}):
            os.truncate(events, min(position["events"][events.name], events.stat().st_size))
        else:
            events.unlink()


def read_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names of the columns, and the rows."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        return list(reader.fieldnames or ()), list(reader)


def write_rows(path: Path, names: list[str], rows: list[dict[str, str]]) -> None:
    """Write a file of rows, whole or not at all."""
    with atomic(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=names)
        writer.writeheader()
        writer.writerows(rows)
