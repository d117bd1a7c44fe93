"""All uses of Lightning's private state. `tests/test_lightning_internals.py` fails if an upgrade changes any of it.

Lightning saves checkpoints at several points of a step (before and after validation, before and after the end of an epoch). On resuming,
it infers from its counters which point that was. `normalise_progress` converts all of these checkpoints to one form: a number of completed
batches of an epoch, or none.
"""

import csv
import json
import re
import subprocess
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, WeightAveraging
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, WandbLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.plugins import MixedPrecision, Precision
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.strategies.launchers import subprocess_script
from lightning.pytorch.trainer.connectors import checkpoint_connector
from lightning.pytorch.tuner.lr_finder import _determine_lr_attr_name
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.parsing import lightning_getattr
from torch import Tensor
from typing_extensions import override

from attnkit.files import LARGEST_JSON, atomic, parse_json, read_text, write_text

METRICS = ExperimentWriter.NAME_METRICS_FILE


def tuned_values(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
    """Return the attributes, by name, that the trainer's tuners set in a module or its data module."""
    names = [c._batch_arg_name for c in trainer.callbacks if isinstance(c, BatchSizeFinder)]  # type: ignore[attr-defined]
    finders = [c for c in trainer.callbacks if isinstance(c, LearningRateFinder)]  # type: ignore[attr-defined]
    names += [_determine_lr_attr_name(module, finder._attr_name) for finder in finders]
    return {name: lightning_getattr(module, name) for name in names}


class Progress(NamedTuple):
    """The position of the fit loop in a checkpoint."""

    epochs: int  # number of completed epochs
    batches: int  # number of completed batches of the current epoch
    is_within_step: bool  # whether the position is between two micro-batches of an optimizer step
    is_fetched: bool  # whether the next batch has been read


def normalise_progress(checkpoint: Mapping[str, Any], trainer: Trainer) -> Progress:
    """Convert a checkpoint's fit loop state to one between two batches or before an epoch; return its position."""
    fit_loop = checkpoint["loops"]["fit_loop"]
    epoch, batch = fit_loop["epoch_progress"], fit_loop["epoch_loop.batch_progress"]
    done = ("ready", "started", "completed")
    is_fetched = batch["current"]["ready"] > batch["current"]["processed"]
    if epoch["current"]["processed"] == epoch["current"]["started"] or batch["current"]["processed"] == 0:  # no epoch has started
        for counts in (epoch["total"], epoch["current"]):
            counts |= dict.fromkeys(done, counts["processed"])
        batch["current"] |= dict.fromkeys(batch["current"], 0)
        batch["is_last_batch"] = False
    if is_fetched:
        batch["is_last_batch"] = False  # describes the fetched batch, which is not processed yet
    for counts in (batch["total"], batch["current"]):  # the next may be fetched, and this one's last hooks missing
        counts |= dict.fromkeys(done, counts["processed"])
    if trainer.lightning_module.automatic_optimization:  # manual optimization may step any number of times per batch
        fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] = trainer.global_step
    batches = batch["current"]["processed"]
    is_within_step = batches % trainer.accumulate_grad_batches != 0 and not batch["is_last_batch"]
    return Progress(epoch["current"]["processed"], batches, is_within_step, is_fetched)


def is_restoring(error: BaseException) -> bool:
    """Return whether an error was raised while Lightning restored a checkpoint (not while it saved one)."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(code.co_filename == checkpoint_connector.__file__ and code.co_name != "dump_checkpoint" for code in codes)


def is_resuming(trainer: Trainer) -> bool:
    """Return whether the starting fit resumes from a checkpoint."""
    return bool(trainer.fit_loop.is_resuming)


def batches_done(trainer: Trainer) -> int:
    """Return how many batches of the starting epoch were completed before the checkpoint."""
    loop = trainer.fit_loop.epoch_loop
    return int(loop.batch_progress.current.completed) if loop.restarting else 0


def restart_epoch(trainer: Trainer) -> None:
    """Fetch the starting epoch's data again, now that samplers know which batches are completed.

    (Lightning fetches before reading the checkpoint, and workers prefetch immediately.)
    """
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    assert fetcher is not None
    for loader in fetcher.combined_loader.flattened:
        _set_sampler_epoch(loader, trainer.current_epoch)  # Lightning does so later, for a distributed sampler
    iter(fetcher)
    if not loop.restarting:
        return
    done = batches_done(trainer)
    if done == 0:
        loop.restarting = False  # given max_steps, Lightning assumes that every run stopped within an epoch
        return
    if done >= trainer.num_training_batches:
        fetcher.done = True  # only the end of the epoch is left
    if not loop._should_accumulate() and loop._should_check_val_fx(fetcher):
        loop._batches_that_stepped -= 1  # Lightning counts it again on passing the validation before the checkpoint


def skip_batches(trainer: Trainer, count: int) -> None:
    """Read and discard the starting epoch's first batches, unless only its end is left."""
    fetcher = trainer.fit_loop._data_fetcher
    assert fetcher is not None
    if not fetcher.done:
        for _ in range(count):
            next(fetcher)
        fetcher.fetched -= count  # Lightning counts them itself


def is_accumulating(trainer: Trainer) -> bool:
    """Return whether the current batch is not the last micro-batch of its optimizer step."""
    return bool(trainer.fit_loop.epoch_loop._should_accumulate())


def clips_what_it_sees(trainer: Trainer, callback: Callback) -> bool:
    """Return whether Lightning clips, by norm, exactly the gradients that a callback sees in `on_before_optimizer_step`.

    True if no later hook can change them, and the precision plugin neither unscales them nor has its own clipping.
    """
    later = trainer.callbacks[trainer.callbacks.index(callback) + 1 :]  # type: ignore[attr-defined]
    plugin = trainer.precision_plugin
    return (
        not any(is_overridden("on_before_optimizer_step", hooks) for hooks in (*later, trainer.lightning_module))
        and type(plugin).clip_gradients in (Precision.clip_gradients, MixedPrecision.clip_gradients)
        and type(plugin).clip_grad_by_norm is Precision.clip_grad_by_norm
        and type(plugin).main_params is Precision.main_params
        and getattr(plugin, "scaler", None) is None
    )


def validates_next(trainer: Trainer) -> bool:
    """Return whether a validation follows the ending training batch; a `val_check_interval` in time is decided later."""
    fetcher = trainer.fit_loop._data_fetcher
    return fetcher is not None and trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


@contextmanager
def in_training_step(module: LightningModule) -> Iterator[None]:
    """Allow logging in a training step repeated in another hook: Lightning forbids it in some hooks, such as those of checkpoints."""
    hook, module._current_fx_name = module._current_fx_name, "training_step"
    try:
        yield
    finally:
        module._current_fx_name = hook


def log_step(module: LightningModule, values: Mapping[str, Tensor], *, prog_bar: bool = False) -> None:
    """Log scalars of a training step, as `module.log_dict` does, from a hook for which Lightning accumulates nothing over the epoch.

    After the first batch of an epoch, a known name goes straight to its metric: per value and step, Lightning would check name and
    arguments again and search the metric for tensors to move, which takes longer than the rest of its logging.
    """
    trainer, hook = module.trainer, module._current_fx_name
    results, is_known = trainer._results, trainer._logger_connector._first_loop_iter is False
    for name, value in values.items():
        if results is not None and is_known and (key := f"{hook}.{name}") in results:
            results.update_metrics(key, value.detach(), batch_size=1)
        else:
            module.log(name, value, prog_bar=prog_bar)


@contextmanager
def averaged(trainer: Trainer, module: LightningModule) -> Iterator[None]:
    """Swap in the averaged weights of a callback, if any; in a validation, the module has them only until the epoch's end."""
    callbacks = [c for c in trainer.callbacks if isinstance(c, WeightAveraging) and c._average_model is not None]  # type: ignore[attr-defined]
    for callback in callbacks:
        callback._swap_models(module)
    try:
        yield
    finally:
        for callback in reversed(callbacks):
            callback._swap_models(module)


def restart_averages(trainer: Trainer, module: LightningModule) -> None:
    """Begin the averages of callbacks at the weights that a module has now; they copied it before its fit started."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, WeightAveraging) and callback._average_model is not None:
            callback._average_model.module.load_state_dict(module.state_dict())


def forget_averages(trainer: Trainer) -> None:
    """Drop the averages that callbacks keep after a fit: with them, a checkpoint to be tested would be loaded with its current weights."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, WeightAveraging):
            callback._average_model = None


def averaged_steps(trainer: Trainer) -> int | None:
    """Return the largest number of updates of a weight-averaging callback, or None if there is no such callback."""
    averages = [c._average_model for c in trainer.callbacks if isinstance(c, WeightAveraging)]  # type: ignore[attr-defined]
    return max((0 if average is None else int(average.n_averaged) for average in averages), default=None)


def disable_requeue(trainer: Trainer) -> int | None:
    """Turn off Lightning's handler of SLURM's signal, and return the signal: it saves within a step, or waits forever for a lock."""
    environment = trainer._accelerator_connector.cluster_environment
    if not isinstance(environment, SLURMEnvironment) or not environment.auto_requeue:
        return None
    environment.auto_requeue = False
    return environment.requeue_signal


def requeued_checkpoint(trainer: Trainer) -> str | None:
    """Return the checkpoint of Lightning's handler of SLURM's signal that Lightning would load unasked, if there is one."""
    return trainer._checkpoint_connector._hpc_resume_path if SLURMEnvironment.detect() else None


def trainer_of(module: LightningModule) -> Trainer | None:
    """Return a module's trainer, or None if it has none, where `module.trainer` would raise."""
    return module._trainer


def set_data_parallel_size(strategy: ModelParallelStrategy, size: int) -> None:
    """Set the number of processes over which a strategy shards parameters, before its setup."""
    strategy._data_parallel_size = size


@contextmanager
def observing_processes(observe: Callable[[Sequence["subprocess.Popen[bytes]"]], None]) -> Iterator[None]:
    """Call `observe` with the processes that Lightning launches in the `with` block.

    (Lightning's own observer silently kills the current process when one of them dies.)
    """
    launcher: Any = subprocess_script
    original, launcher._launch_process_observer = launcher._launch_process_observer, observe
    try:
        yield
    finally:
        launcher._launch_process_observer = original


class Writer(ExperimentWriter):
    """Writes `metrics.csv`, appending to an existing one. If the process is killed, at most the row being written is lost."""

    rows = 0  # in the file

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
    """Lightning's CSVLogger, but a resumed run continues its file."""

    @property
    @rank_zero_experiment
    @override
    def experiment(self) -> Writer:
        """The writer of the file."""
        if self._experiment is None:
            self._experiment = Writer(log_dir=self.log_dir)
        assert isinstance(self._experiment, Writer)
        return self._experiment


class MLflowRun(MLFlowLogger):
    """Lightning's MLFlowLogger, but a resumed run logs nothing that its record already has."""

    earlier: Mapping[str, Collection[int]] = {}  # steps in the record, by metric

    @override
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        new = {name: value for name, value in metrics.items() if (step or 0) not in self.earlier.get(self._recorded(name), ())}
        if new:
            super().log_metrics(new, step)

    def _recorded(self, name: str) -> str:
        """Return a metric's name in the record."""
        return re.sub(r"[^a-zA-Z0-9_/. -]+", "", f"{self._prefix}{self.LOGGER_JOIN_CHAR}{name}" if self._prefix else name)


class WandbRun(WandbLogger):
    """Lightning's WandbLogger, but a resumed run logs nothing again that it logged before it was killed: W&B cannot delete it.

    Offline, W&B cannot be asked what a record has, so a file keeps the last step of each metric.
    """

    _file: Path | None = None
    _steps: Mapping[str, int] = {}
    _earlier: Mapping[str, int] = {}

    def keep_steps(self, file: Path) -> None:
        """Keep the last step of each metric in a file, and read those of the continued record."""
        kept = parse_json(read_text(file, limit=LARGEST_JSON)) if file.exists() else {}
        self._file, self._earlier = file, kept["steps"] if kept.get("id") == self.version else {}
        self._steps = self._earlier

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        new = {name: value for name, value in metrics.items() if step is None or step > self._earlier.get(name, -1)}
        if not new:
            return
        super().log_metrics(new, step)
        if self._file is not None and step is not None:
            self._steps = {**self._steps, **dict.fromkeys(new, step)}
            write_text(self._file, json.dumps({"id": self.version, "steps": self._steps}))


def read_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the column names and rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        return list(reader.fieldnames or ()), list(reader)


def write_rows(path: Path, names: list[str], rows: list[dict[str, str]]) -> None:
    """Write a CSV file atomically."""
    with atomic(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=names)
        writer.writeheader()
        writer.writerows(rows)
