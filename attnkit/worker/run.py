"""A run of a study in its own process: `python -m attnkit.worker.run FOLDER` trains the job in FOLDER/job.json.

`attnkit.worker.job` adds `--driven`, and `--timeout=SECONDS` if the study has one; see `attnkit.worker.lifeline`.
"""

import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from typing_extensions import override

from attnkit.callback import UnhealthyError
from attnkit.callback.last_checkpoint import LAST, PREVIOUS
from attnkit.callback.stopping import Stopped, stop_outlasting_errors, stop_signals
from attnkit.ownership import OwnedError, owned
from attnkit.recipe import SPEC_KEYS
from attnkit.registry import IMPORTS, ConfigurationError, import_modules
from attnkit.task import Task
from attnkit.train.encoding import escape_unprintable
from attnkit.train.hyperparameters import has_hyperparameters
from attnkit.train.messages import one_message, quiet
from attnkit.train.out_of_memory import is_out_of_memory
from attnkit.train.output import say
from attnkit.train.ranks import is_lost, together
from attnkit.train.request import Request
from attnkit.train.run import RunCLI
from attnkit.worker import opened
from attnkit.worker.budget import Budget
from attnkit.worker.costs import operations_per_token, uses_processor_time
from attnkit.worker.evaluation import Evaluation
from attnkit.worker.folder import BUSY, FULL, UNDERWAY, note, read_json, write_json
from attnkit.worker.lifeline import hold_on, is_child
from attnkit.worker.limit import Limit
from attnkit.worker.loggers import RunFolder, alone, has_loggers, open_records, records_of, with_named_loggers
from attnkit.worker.recorder import Recorder, Reporter, finite, logged
from attnkit.worker.sources import watch_imports
from attnkit.worker.witness import Witness

RECIPE = "recipe.yaml"


class WorkerCLI(RunCLI):
    """`attnkit fit` with a `Recorder` before all other callbacks; a run ended by its health checks counts as diverged."""

    def __init__(self, request: Request, recorder: Recorder, others: Sequence[Callback]) -> None:
        self.recorder, self.others = recorder, others
        super().__init__("fit", request, ExitStack())

    @override
    def _whereabouts(self) -> list[Callback]:
        """Return no callbacks: this process already holds the folder of the run."""
        return []

    @override
    def instantiated(self) -> Any:
        chosen = self._parsed(self.config).trainer
        if not isinstance(chosen.logger, list) or is_child():  # `with_named_loggers` turns everything but `true` into a list
            return super().instantiated()
        with alone(Path(chosen.default_root_dir).parent):
            found = super().instantiated()
            open_records(self._parsed(found).trainer.logger, Path(chosen.default_root_dir), self.checkpoint)
        return found

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        trainer = super().instantiate_trainer(**kwargs)
        if trainer.loggers:
            trainer.loggers = [RunFolder(str(trainer.default_root_dir)), *trainer.loggers]
        trainer.callbacks[:0] = [self.recorder, *self.others]  # type: ignore[attr-defined]
        return trainer

    def before_fit(self) -> None:
        """Seed the random draws of the data module's setup, because a user's own LightningModule may already have drawn numbers."""
        self.recorder.seed_data()
        options = {key: value for key, value in self.recipe.items() if key in SPEC_KEYS} | {"seeds": self.recorder.seeds}
        for logger in self.trainer.loggers:
            if self.ckpt_path is None or not has_hyperparameters(logger):
                logger.log_hyperparams(options)

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        try:
            super()._run_subcommand(subcommand)
        except UnhealthyError as error:  # an outcome, not a failure
            say(str(error))
            self.recorder.diverged = True


def request_of(job: dict[str, Any], folder: Path) -> Request:
    """Return the request of `attnkit fit` for a job whose recipe is in a folder."""
    return Request(
        recipes=[str(folder / RECIPE)],
        others=[
            f"--seed_everything={job['seeds']['initialisation']}",
            f"--trainer.default_root_dir={folder}",
            *([] if has_loggers(job["recipe"]) else ["--trainer.logger=false"]),
            "--trainer.enable_progress_bar=false",
        ],
    )


def train(folder: Path, recorder: Recorder) -> None:
    """Train the job in a folder, resuming from its last checkpoint if there is one, and write the result."""
    job = read_json(folder / "job.json")
    recorder.seeds = job["seeds"]
    opened.watch()  # before the modules in `imports` can read data
    if not is_child():
        import_modules(job["recipe"].get(IMPORTS, ()))
        recipe = job["recipe"]
        if has_loggers(recipe):
            recipe = with_named_loggers(recipe, job.get("name", folder.name), folder, records_of(folder))
        (folder / RECIPE).write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    evaluation = Evaluation()
    saved = (folder / "checkpoints" / name for name in (LAST, PREVIOUS))  # only PREVIOUS exists if the run was killed while writing
    request = request_of(job, folder)
    request.ckpt_path = next((str(path) for path in saved if path.exists()), None)
    limit = Limit(Budget(**job["budget"]), tokens=lambda: recorder.tokens, seconds=recorder.elapsed) if "budget" in job else None
    witness = Witness(folder, job["recipe"], continued=request.ckpt_path is not None)
    cli = WorkerCLI(request, recorder, [evaluation, witness, *([limit] if limit else []), Reporter(folder, recorder)])
    if limit is not None and not recorder.diverged:
        limit.require_spent()
    last = recorder.curve[-1] if recorder.curve else {}
    metrics = {k: v for k, v in last.items() if k not in ("step", "batches", "tokens", "seconds")}
    metrics |= logged(cli.trainer)
    # read before testing, which restores the callbacks' states from the best checkpoint
    started = recorder.began - recorder.earlier
    training = {
        "curve": [finite(point) for point in recorder.curve],
        "batches": recorder.batches,
        "batch_hash": recorder.digest,
        "starts": recorder.starts,
        "unhashed": recorder.unhashed,
        "tokens": recorder.tokens,
        "seconds": round(recorder.seconds, 3),
        "clock": "processor" if uses_processor_time() else "shared" if job.get("shared_gpu") else "wall",
        "tokens_per_second": round(recorder.tokens / recorder.seconds, 1) if recorder.seconds else None,
        "memory": recorder.memory,
        "budget": None if limit is None else {**job["budget"], "spent": limit.spent},
    }
    if job["test"] and not recorder.diverged:
        for tested in cli.trainer.test(cli.model, datamodule=cli.datamodule, ckpt_path=best_checkpoint(cli.trainer), weights_only=True):
            metrics |= dict(tested)  # one per dataloader
    result = {
        "metrics": finite(metrics),
        **training,
        "parameters": sum(p.numel() for p in cli.model.parameters()),
        **evaluation.kept(),
    }
    if is_child():
        return
    if isinstance(cli.model, Task):
        result |= operations_per_token(cli.model, next(iter(cli.datamodule.val_dataloader()), None), made=witness.made)
    witness.write()
    write_json(folder / "result.json", result)
    (folder / UNDERWAY).unlink(missing_ok=True)
    write_json(
        folder / "status.json", {"status": "diverged" if recorder.diverged else "ok", "wall_seconds": round(time.time() - started, 3)}
    )


def best_checkpoint(trainer: Trainer) -> str:
    """Return the path of a run's best checkpoint by the monitored metric; raise a `ConfigurationError` if it keeps none."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.best_model_path:
            return callback.best_model_path
    raise ConfigurationError(
        "a test metric needs the best checkpoint, but the run keeps none: enable validation and checkpoints in the recipe, and give your "
        "own LightningModule an attribute `monitor`, such as ('val/loss', 'min')"
    )


def kind_of(error: BaseException) -> str:
    """Return the kind of a failure, which decides whether the run is retried.

    Example:
        >>> kind_of(ConfigurationError("no such name")), kind_of(OSError(28, "No space left on device")), kind_of(ZeroDivisionError())
        ('configuration', 'disk_full', 'error')
        >>> kind_of(RuntimeError("[enforce fail at alloc_cpu.cpp:130] err == 0. DefaultCPUAllocator: can't allocate memory"))
        'out_of_memory'
        >>> kind_of(ChildProcessError("a process that loads batches died"))
        'killed'
    """
    if isinstance(error, ConfigurationError):
        return "configuration"
    if isinstance(error, OSError) and error.errno in FULL:
        return "disk_full"
    if isinstance(error, ChildProcessError):  # of the data loader
        return "killed"
    return "out_of_memory" if is_out_of_memory(error) else "error"


def failure(error: Exception, *, in_training: bool) -> dict[str, Any]:
    """Return the status of a run that failed; for want of a file, a connection or a package, it has not failed `in_training`.

    Example:
        >>> failure(ZeroDivisionError("no"), in_training=True)
        {'status': 'failed', 'kind': 'error', 'message': 'ZeroDivisionError: no', 'in_training': True}
        >>> failure(FileNotFoundError(2, "no such file"), in_training=True)
        {'status': 'failed', 'kind': 'error', 'message': 'FileNotFoundError: [Errno 2] no such file'}
    """
    kind = kind_of(error)
    found = {"status": "failed", "kind": kind, "message": f"{type(error).__name__}: {error}".splitlines()[0]}
    is_of_machine = kind != "out_of_memory" and isinstance(error, OSError | ImportError)
    return {**found, "in_training": True} if in_training and not is_of_machine else found


def main(folder: Path) -> int:
    """Train, record how the run ended, and return the exit status."""
    escape_unprintable()
    with stop_signals.taken():
        try:
            with together():
                return _main(folder)
        except Stopped as stop:
            return 0 if is_child() else int(stop.code or 0)


def _main(folder: Path) -> int:
    recorder = Recorder({})  # its seeds are in the job, which may be damaged
    if is_child():
        train(folder, recorder)
        return 0
    try:
        with owned(folder):
            if (folder / "status.json").exists():
                return 0  # another process has finished the run since this one was started
            try:
                # (the first of several `ModelCheckpoint` is `best`)
                with quiet(r".*configured with multiple `ModelCheckpoint`"), one_message(), stop_outlasting_errors():
                    train(folder, recorder)
            except Exception as error:
                if is_lost(error):
                    note(folder, "killed", "one of its processes died; attnkit ablate logs shows which")
                    raise
                traceback.print_exc()
                write_json(folder / "status.json", failure(error, in_training=recorder.in_training))
                return 1
    except OwnedError:
        return BUSY
    return 0


if __name__ == "__main__":
    watch_imports()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    hold_on(Path(sys.argv[1]), sys.argv[2:])
    sys.exit(main(Path(sys.argv[1])))
