"""Times runs for a plan: trains a few steps of each job in FOLDER/job.json and answers each with a line of JSON on stdout."""

import contextlib
import json
import logging
import math
import os
import sys
import tempfile
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from attnkit.registry import ConfigurationError
from attnkit.worker.answers import Probe
from attnkit.worker.budget import Budget
from attnkit.worker.costs import now, training_flops_per_token, uses_processor_time
from attnkit.worker.folder import read_json
from attnkit.worker.lifeline import hold_on
from attnkit.worker.loggers import without_loggers
from attnkit.worker.recorder import Recorder
from attnkit.worker.run import RECIPE, WorkerCLI, request_of

WARM_UP = 2
STEPS = 8
ENOUGH = 3.0  # seconds of training after which the probe stops


class EnoughError(Exception):
    """Ends the training of a probe."""


class Stopwatch(Callback):
    """Times the first steps of training, then ends it.

    A validation batch is timed in Lightning's sanity check before training. The recorder's clock stops during validations. `tests` says
    whether a run ends with a pass through the test data; `startup` is the number of seconds that the process ran before its job.
    """

    def __init__(self, recorder: Recorder, *, budget: Budget | None, tests: bool, startup: float) -> None:
        self.recorder, self.budget, self.tests, self.startup = recorder, budget, tests, startup
        self.answer: Probe | None = None
        self._began, self._validation_began = now(), 0.0
        self._checking = self._batch = 0.0  # seconds of the whole sanity check and of its last batch
        self._base = (0, 0, 0.0)  # batches, tokens and seconds at the end of the warm-up
        self._example: Any = None
        self._logged: tuple[str, ...] = ()

    @override
    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._checking = now()

    @override
    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._checking = now() - self._checking
        self._logged = tuple(sorted(trainer.callback_metrics))

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._example = batch if self._example is None else self._example
        self._validation_began = now()

    @override
    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._batch = now() - self._validation_began

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.startup += now() - self._began - self._checking

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        batches, seconds = self.recorder.batches, self.recorder.elapsed()
        if batches == WARM_UP:
            self._base = (batches, self.recorder.tokens, seconds)
        if batches == WARM_UP + STEPS or (batches > WARM_UP and seconds - self._base[2] > ENOUGH):
            self._finish(trainer, pl_module)
            raise EnoughError

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # reached if a run has fewer steps than the probe
        self._finish(trainer, pl_module)

    def _finish(self, trainer: Trainer, pl_module: LightningModule) -> None:
        base = self._base if self.recorder.batches > WARM_UP else (0, 0, 0.0)
        made = self.recorder.batches - base[0]
        tokens = (self.recorder.tokens - base[1]) / max(made, 1) * trainer.accumulate_grad_batches
        step = (self.recorder.elapsed() - base[2]) / max(made, 1) * trainer.accumulate_grad_batches
        flops_per_token = training_flops_per_token(pl_module, self._example)
        steps = math.inf if trainer.estimated_stepping_batches == -1 else trainer.estimated_stepping_batches
        if self.budget is not None:
            used = {"steps": 1.0, "tokens": tokens, "flops": tokens * (flops_per_token or 0), "seconds": step}[self.budget.on]
            steps = min(steps, self.budget.limit / used) if used else steps
        if not math.isfinite(steps):
            raise ConfigurationError("the length of a run is unknown: set max_epochs, max_steps or a budget")
        self.answer = Probe(
            startup=self.startup,
            step=step,
            steps=steps,
            training=step / trainer.accumulate_grad_batches * _batches(trainer, steps),
            validation=self._batch * sum(n for n in trainer.num_val_batches if math.isfinite(n)) if self._example is not None else 0.0,
            validations=_validations(trainer, _batches(trainer, steps)) + self.tests,
            flops_per_token=flops_per_token,
            logged=self._logged,
        )


class ProbeCLI(WorkerCLI):
    """A run that is timed, in a single process."""

    def before_fit(self) -> None:
        """Raise if the run has several processes: it cannot be timed."""
        super().before_fit()
        if self.trainer.world_size > 1:
            raise ConfigurationError(f"a run with {self.trainer.world_size} processes cannot be timed")


def _batches(trainer: Trainer, steps: float) -> float:
    """Return the number of batches in a number of steps; the last step of an epoch may have fewer batches."""
    epoch, accumulated = trainer.num_training_batches, trainer.accumulate_grad_batches
    return steps * epoch / math.ceil(epoch / accumulated) if math.isfinite(epoch) else steps * accumulated


def _validations(trainer: Trainer, batches: float) -> int:
    """Return the number of validations in a number of training batches."""
    every, epoch = trainer.val_check_batch, trainer.num_training_batches
    if not every or not math.isfinite(every):
        return 1
    if trainer.check_val_every_n_epoch is not None:
        every = epoch * trainer.check_val_every_n_epoch / max(1, epoch // every)
    return max(1, math.ceil(round(batches / every, 6)))


def probe(job: dict[str, Any], *, startup: float) -> Probe:
    """Train a few steps of a job in a temporary folder, without its loggers, and return the timing."""
    job = {**job, "recipe": without_loggers(job["recipe"])}
    recorder = Recorder(job["seeds"])
    watch = Stopwatch(recorder, budget=Budget(**job["budget"]) if "budget" in job else None, tests=job["test"], startup=startup)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (Path(name) / RECIPE).write_text(yaml.safe_dump(job["recipe"], sort_keys=False), encoding="utf-8")
        request = request_of(job, Path(name))
        request.others.append("--trainer.num_sanity_val_steps=2")  # the first batch is a warm-up
        with contextlib.suppress(EnoughError):
            ProbeCLI(request, recorder, [watch])
    if watch.answer is None:
        raise ConfigurationError("training ended before its first step")
    return watch.answer


def main(folder: Path) -> int:
    """Answer the question in `folder`."""
    question = read_json(folder / "job.json")
    began = time.monotonic()
    startup = time.process_time() if uses_processor_time() else time.time() - question["began"]
    for job in question["jobs"]:
        if time.monotonic() - began > question["seconds"]:
            break
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            try:
                answer = asdict(probe(job, startup=startup))
            except (Exception, SystemExit) as error:  # a plan can do without timings
                answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    hold_on(Path(sys.argv[1]), sys.argv[2:])
    sys.exit(main(Path(sys.argv[1])))
