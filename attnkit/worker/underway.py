"""Writes the progress of a run of a study, for live pages."""

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from attnkit.worker.answers import Underway
from attnkit.worker.folder import UNDERWAY, write_json
from attnkit.worker.recorder import Recorder

EVERY = 5.0  # seconds between two writes; each validation is written at once


class Reporter(Callback):
    """Keeps the file `progress.json` of a run, with the learning curve of its recorder."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self.folder, self.recorder = folder, recorder
        self._written = -math.inf

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if time.monotonic() - self._written > EVERY:
            self._write(trainer)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        self._written = time.monotonic()
        if trainer.is_global_zero:
            curve = tuple({k: v if math.isfinite(v) else None for k, v in point.items()} for point in self.recorder.curve)
            steps = trainer.estimated_stepping_batches
            known = int(steps) if math.isfinite(steps) and steps > 0 else None
            write_json(self.folder / UNDERWAY, asdict(Underway(step=trainer.global_step, steps=known, curve=curve)))
