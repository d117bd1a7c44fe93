"""Lets `--resume` find a run with the user's own loggers, or none: an index of checkpoint folders, whose names W&B chooses at random.

The index `runs/RECIPE/.resume/1f0c2a9b.json` lists the checkpoint folders of the newest run with these loggers, relative to the folder
of the index.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from attnkit.callback.last_checkpoint import LastCheckpoint, checkpoint_folder
from attnkit.files import parse_json, read_text, short_path, write_text
from attnkit.ownership import owned
from attnkit.registry import ConfigurationError
from attnkit.train.output import say
from attnkit.train.request import Request

FOLDER = ".resume"
LIMIT = 1 << 20  # maximum size of an index in bytes


def loggers_in(request: Request, recipe: Mapping[str, Any]) -> list[Any]:
    """Return a request's logger settings; an empty list if it uses attnkit's loggers.

    Example:
        >>> loggers_in(Request(others=["--trainer.max_epochs", "3", "--trainer.logger", "false"]), {})
        [['--trainer.logger', 'false']]
    """
    given = (recipe.get("trainer") or {}).get("logger")
    flags = [[key, value] for key, value in request.other_flags() if key == "--trainer" or key.startswith("--trainer.logger")]
    return ([] if given is None else [given]) + [flag for flag in flags if flag[1] != "null"]


def index_at(runs: Path, loggers: list[Any]) -> Path:
    """Return the path of the index for these loggers, in the folder `runs` of a recipe."""
    return runs / FOLDER / f"{hashlib.sha256(json.dumps(loggers, default=str).encode()).hexdigest()[:8]}.json"


def read_index(index: Path) -> list[Path]:
    """Return the folders in an index, newest first; none if it does not exist."""
    if not index.exists():
        return []
    try:
        return [Path(os.path.normpath(index.parent / name)) for name in parse_json(read_text(index, limit=LIMIT))]
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{index} is damaged: delete it, and resume with --ckpt_path PATH instead of --resume") from error


class Whereabouts(Callback):
    """Claims the folder of the run's `last.ckpt`, and writes it into an index when training starts."""

    def __init__(self, index: Path | None, resumed: Path | None) -> None:
        self.index = index  # None without a recipe, when `--resume` cannot find the run
        self.resumed = resumed  # folder of the checkpoint that the run continues, already claimed by this run
        self.folder: Path | None = None
        self.held = ExitStack()

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or not any(isinstance(callback, LastCheckpoint) for callback in trainer.checkpoint_callbacks):
            return
        folder = Path(short_path(str(checkpoint_folder(trainer).absolute())))
        if not trainer.is_global_zero:
            return
        self.folder = folder
        if not self._continues_in_place():
            folder.mkdir(parents=True, exist_ok=True)
            self.held.enter_context(owned(folder, say=say))

    def _continues_in_place(self) -> bool:
        return self.folder is not None and self.resumed is not None and self.folder.resolve() == self.resumed.resolve()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.folder is None:
            return
        folders = [self.folder]
        if self.resumed is not None and not self._continues_in_place():
            folders.append(self.resumed)  # has the newest state until this run's first checkpoint
            say(f"note: the logger starts a new version, so the run now saves its state in {self.folder}")
        if self.index is not None:
            write_text(self.index, json.dumps([os.path.relpath(folder, self.index.parent) for folder in folders]))

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.held.close()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.held.close()
