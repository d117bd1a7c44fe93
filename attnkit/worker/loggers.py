"""Loggers of the recipe in a run of a study: they get the run's name, and checkpoints stay in its folder."""

import inspect
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import loggers
from lightning.pytorch.loggers import Logger
from typing_extensions import override

from attnkit.ownership import OwnedError, owned
from attnkit.registry.class_path import find

NAMES = ("run_name", "name", "experiment_name", "experiment_key")
"""Arguments of loggers that name a run, the most specific first."""

MAKING = ".loggers"  # a folder whose owner is the run that makes its loggers
WAIT = 0.1  # seconds


class RunFolder(Logger):
    """A logger without logs, before all others: Lightning puts checkpoints into the folder of the first one, that of the run."""

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


def with_named_loggers(recipe: Mapping[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """Return a recipe whose loggers have the run's name, and its folder if they need one, unless the recipe gives them others.

    Example:
        >>> recipe = {"trainer": {"logger": {"class_path": "CSVLogger"}}}
        >>> with_named_loggers(recipe, "baseline seed 0", Path("f"))["trainer"]["logger"]
        [{'class_path': 'CSVLogger', 'init_args': {'name': 'baseline seed 0', 'save_dir': 'f'}}]
    """
    trainer = recipe.get("trainer") or {}
    given = trainer.get("logger")
    if not given or given is True:
        return dict(recipe)
    named = [_named(logger, name, folder) for logger in (given if isinstance(given, list | tuple) else [given])]
    return {**recipe, "trainer": {**trainer, "logger": named}}


def without_loggers(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe that logs nowhere.

    Example:
        >>> without_loggers({"trainer": {"logger": {"class_path": "CSVLogger"}, "max_epochs": 3}})
        {'trainer': {'max_epochs': 3}}
    """
    return {**recipe, "trainer": {key: value for key, value in (recipe.get("trainer") or {}).items() if key != "logger"}}


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until no other run in a folder of runs makes its loggers, and hold them up meanwhile.

    Two runs that begin at once would both create a data base, or an experiment of the same name, and one of them would fail.
    """
    place = folder / MAKING
    place.mkdir(exist_ok=True)
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(owned(place))
                break
            except OwnedError:
                time.sleep(WAIT)
        yield


def _named(logger: Any, name: str, folder: Path) -> Any:
    spec: dict[str, Any] = {"class_path": logger} if isinstance(logger, str) else dict(logger)
    path = str(spec.get("class_path", ""))
    if "." not in path and not hasattr(loggers, path):
        return logger  # Lightning's parser says what is wrong
    parameters = inspect.signature(find(path) if "." in path else getattr(loggers, path)).parameters
    arguments: dict[str, Any] = dict(spec.get("init_args") or {})
    naming = next((argument for argument in NAMES if argument in parameters), None)
    if naming is not None:
        arguments.setdefault(naming, re.sub(r"[/\\\\]", "_", name))
    if "save_dir" in parameters and parameters["save_dir"].default is inspect.Parameter.empty:
        arguments.setdefault("save_dir", str(folder))
    return {**spec, "init_args": arguments}
