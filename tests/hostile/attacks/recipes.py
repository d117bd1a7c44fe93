"""Good checkpoints with harmful trainer settings: `attnkit fit` may use them, but must leave out the harmful part."""

from pathlib import Path
from typing import Any

from tests.hostile.attacks.base import COMMAND, Attacks, with_trainer

RECIPES = Attacks()
EVIL_MODULE = f"import os\nfrom lightning.pytorch import Callback\nos.system('{COMMAND}')\nclass Evil(Callback):\n    pass\n"


@RECIPES
def imports_a_callback(good: dict[str, Any], path: Path) -> None:
    """Asks for a callback of a module of its choice."""
    with_trainer(good, path, callbacks=[{"class_path": "evil.Evil", "init_args": {}}])


@RECIPES
def imports_a_callback_by_its_name(good: dict[str, Any], path: Path) -> None:
    """Asks for one callback, as a word."""
    with_trainer(good, path, callbacks="evil.Evil")


@RECIPES
def imports_an_argument(good: dict[str, Any], path: Path) -> None:
    """Gives a good callback a function of a module of its choice."""
    average = "lightning.pytorch.callbacks.EMAWeightAveraging"
    with_trainer(good, path, callbacks=[{"class_path": average, "init_args": {"avg_fn": "evil.Evil"}}])


@RECIPES
def imports_a_strategy(good: dict[str, Any], path: Path) -> None:
    """Asks for a strategy and a logger of a module of its choice."""
    with_trainer(good, path, strategy="evil.Evil", logger={"class_path": "evil.Evil"}, plugins=["evil.Evil"], profiler="evil.Evil")


@RECIPES
def writes_elsewhere(good: dict[str, Any], path: Path) -> None:
    """Asks for another folder."""
    with_trainer(good, path, default_root_dir=str(path.with_name("elsewhere")))


@RECIPES
def saves_elsewhere(good: dict[str, Any], path: Path) -> None:
    """Asks for checkpoints in another folder, by a folder and by the name of the file."""
    kind = "lightning.pytorch.callbacks.ModelCheckpoint"
    elsewhere = {"class_path": kind, "init_args": {"dirpath": str(path.with_name("elsewhere"))}}
    upwards = {"class_path": kind, "init_args": {"filename": "../../../../../elsewhere/x"}}
    with_trainer(good, path, callbacks=[elsewhere, upwards])


@RECIPES
def is_called_upwards(good: dict[str, Any], path: Path) -> None:
    """Is a run whose name is a path out of `runs`."""
    with_trainer(good, path, name="../../elsewhere")


@RECIPES
def starts_many_processes(good: dict[str, Any], path: Path) -> None:
    """Asks for a million processes."""
    with_trainer(good, path, devices=10**6, strategy="ddp")


@RECIPES
def imports_data(good: dict[str, Any], path: Path) -> None:
    """Names its data by the path of a module."""
    with_trainer(good, path, data={"class_path": "evil.Evil", "init_args": {}})
