"""The recipe's loggers in a run of a study: they get the run's name, and checkpoints stay in the run's folder.

A run is one record in each logger. The names of the records are stored in the run's folder, and a run that continues reuses them.
"""

import inspect
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from lightning.pytorch import loggers
from lightning.pytorch.loggers import CometLogger, CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from typing_extensions import override

from attnkit.lightning_internals import MLflowRun, RunLogger, WandbRun
from attnkit.ownership import OwnedError, owned
from attnkit.registry.class_path import find
from attnkit.train.logs import POSITION, truncate_logs
from attnkit.worker.folder import RECORDS, stored, write_json

NAMES = ("run_name", "name", "experiment_name", "experiment_key")
"""Logger arguments that name a run, most specific first."""

IDENTITIES = {RunLogger: "version", TensorBoardLogger: "version", WandbLogger: "id", MLFlowLogger: "run_id", CometLogger: "experiment_key"}
"""The argument by which each logger identifies an existing record."""

CONTINUING: dict[type, type] = {CSVLogger: RunLogger, MLFlowLogger: MLflowRun, WandbLogger: WandbRun}
"""Replacements for Lightning loggers that cannot continue a record. A user's own subclasses are not replaced."""

LOCK = ".loggers"  # a folder owned by the run that is creating its loggers
WAIT = 0.1  # seconds


class RunFolder(Logger):
    """A logger that logs nothing and comes first: Lightning puts checkpoints into the first logger's folder, here the run's."""

    name = version = save_dir = ""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.save_dir = folder

    @override
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Do nothing."""

    @override
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class Records:
    """The content of `records.json`."""

    token: str = field(default_factory=lambda: uuid4().hex)  # differs if a run starts over or is made elsewhere
    names: tuple[str | int | None, ...] = ()  # each logger's name for its record; empty until the loggers exist


def with_named_loggers(recipe: Mapping[str, Any], name: str, folder: Path, records: Records) -> dict[str, Any]:
    """Return a recipe whose loggers have the run's name and records and, if needed, its folder, unless the recipe sets others.

    Example:
        >>> recipe = {"trainer": {"logger": {"class_path": "TensorBoardLogger"}}}
        >>> with_named_loggers(recipe, "baseline seed 0", Path("f"), Records())["trainer"]["logger"]
        [{'class_path': 'TensorBoardLogger', 'init_args': {'name': 'baseline seed 0', 'save_dir': 'f'}}]
        >>> with_named_loggers(recipe, "baseline seed 0", Path("f"), Records(names=(3,)))["trainer"]["logger"][0]["init_args"]["version"]
        3
    """
    trainer = recipe.get("trainer") or {}
    given = trainer.get("logger")
    if not given or given is True:
        return dict(recipe)
    every = given if isinstance(given, list | tuple) else [given]
    known = records.names if len(records.names) == len(every) else [None] * len(every)
    named = [_named(logger, name, folder, records.token, record) for logger, record in zip(every, known, strict=True)]
    return {**recipe, "trainer": {**trainer, "logger": named}}


def has_loggers(recipe: Mapping[str, Any]) -> bool:
    """Return whether the recipe has loggers, so that runs log to more than their own records."""
    return bool((recipe.get("trainer") or {}).get("logger"))


def records_of(folder: Path) -> Records:
    """Return the records of the run in a folder; for a new run, create them."""
    if (found := stored(Records, folder / RECORDS)) is None:
        found = Records()
        write_json(folder / RECORDS, asdict(found))
    return found


def open_records(made: Sequence[Logger], folder: Path, checkpoint: Mapping[str, Any] | None) -> None:
    """Open the records of a run's loggers and store their names; continued records are truncated to where the checkpoint was saved."""
    records = records_of(folder)
    names = list(records.names) or [None] * len(made)
    for logger, name in zip(made, names, strict=True):
        if isinstance(logger, RunLogger) or (isinstance(logger, TensorBoardLogger) and name is not None):
            truncate_logs(Path(logger.log_dir), {"rows": 0} if checkpoint is None else checkpoint.get(POSITION, {}))
        elif isinstance(logger, MLflowRun) and name is not None:
            logger.experiment.update_run(logger.run_id, status="RUNNING")
            metrics = logger.experiment.get_run(logger.run_id).data.metrics
            logger.earlier = {key: {one.step for one in logger.experiment.get_metric_history(logger.run_id, key)} for key in metrics}
    for number, logger in enumerate(made):
        if isinstance(logger, tuple(IDENTITIES)):
            names[number] = logger.version
            write_json(folder / RECORDS, asdict(Records(token=records.token, names=tuple(names))))
        if isinstance(logger, WandbRun):
            logger.keep_steps(folder / f"wandb-{number}.json")
        getattr(logger, "experiment", None)  # creates a database, an experiment or a folder now, which Lightning would do later


def without_loggers(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without its loggers.

    Example:
        >>> without_loggers({"trainer": {"logger": {"class_path": "CSVLogger"}, "max_epochs": 3}})
        {'trainer': {'max_epochs': 3}}
    """
    return {**recipe, "trainer": {key: value for key, value in (recipe.get("trainer") or {}).items() if key != "logger"}}


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a lock for creating loggers, which all runs in a folder of runs share.

    Otherwise, two runs that start at once would both create a database, or an experiment of the same name, and one of them would fail.
    """
    place = folder / LOCK
    place.mkdir(exist_ok=True)
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(owned(place))
                break
            except OwnedError:
                time.sleep(WAIT)
        yield


def _named(logger: Any, name: str, folder: Path, token: str, record: str | int | None) -> Any:
    spec: dict[str, Any] = {"class_path": logger} if isinstance(logger, str) else dict(logger)
    path = str(spec.get("class_path", ""))
    if "." not in path and not hasattr(loggers, path):
        return logger  # Lightning's parser says what is wrong
    given = find(path) if "." in path else getattr(loggers, path)
    if (cls := CONTINUING.get(given, given)) is not given:
        spec["class_path"] = f"{cls.__module__}.{cls.__qualname__}"
    parameters = inspect.signature(cls).parameters
    arguments: dict[str, Any] = dict(spec.get("init_args") or {})
    identity = next((argument for kind, argument in IDENTITIES.items() if issubclass(cls, kind) and argument in parameters), None)
    if identity == "id" and "version" not in arguments:
        record = record or f"{folder.name}-{token[:8]}"
    elif identity == "experiment_key":
        record = record or token
    if identity is not None and record is not None:
        arguments.setdefault(identity, record)
    naming = next((argument for argument in NAMES if argument in parameters and argument != identity), None)
    if naming is not None:
        arguments.setdefault(naming, re.sub(r"[/\\\\]", "_", name))
    if "save_dir" in parameters and parameters["save_dir"].default is inspect.Parameter.empty:
        arguments.setdefault("save_dir", str(folder))
    return {**spec, "init_args": arguments}
