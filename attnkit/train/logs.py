"""Lets a resumed run continue the logs from its checkpoint, without gaps or duplicates."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import override

from attnkit.checkpoint import CheckpointError
from attnkit.lightning_internals import METRICS, RunLogger, read_rows, write_rows

EVENTS = "events.out.tfevents*"
POSITION = "log_position"  # key in a checkpoint


class LogPosition(Callback):
    """Saves the current position of the logs in each checkpoint."""

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


def truncate_logs(folder: Path, position: Any) -> None:
    """Remove the log entries written after a checkpoint; raise if its log position is damaged."""
    content: Mapping[str, Any] = position if isinstance(position, Mapping) else {"events": None}
    number, sizes = content.get("rows", 0), content.get("events", {})
    if not isinstance(sizes, Mapping) or not all(isinstance(n, int) and n >= 0 for n in (number, *sizes.values())):
        raise CheckpointError("the checkpoint's log position is damaged: use an earlier checkpoint")
    path = folder / METRICS
    if path.exists() and "rows" in content:
        names, rows = read_rows(path)
        write_rows(path, names, rows[:number])
    for events in folder.glob(EVENTS):
        if events.name in sizes:
            os.truncate(events, min(sizes[events.name], events.stat().st_size))
        else:
            events.unlink()
