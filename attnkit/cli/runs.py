"""The runs of a recipe: folders `version_0`, `version_1`, ... with checkpoints."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from attnkit.cli.components import short_path
from attnkit.cli.output import say
from attnkit.cli.recipe import Request, find_recipe, recipe_folder
from attnkit.registry import ConfigurationError
from attnkit.task.checkpoint import CheckpointError, require_undamaged
from attnkit.task.resume import WITHIN_STEP

DAMAGED, INEXACT = ".damaged", ".within_step"
ROOT = "--trainer.default_root_dir"


def find_run(request: Request, command: str, recipe: Mapping[str, Any], ckpt_path: str | None) -> tuple[Path, str] | tuple[None, None]:
    """Return the folder and the newest checkpoint of the newest run of a recipe, for `--resume`; None if there is none, and say so.

    Raises:
        ConfigurationError: It is not clear which run is meant.
    """
    if command != "fit" or ckpt_path not in (None, "last"):
        raise ConfigurationError("--resume is for attnkit fit, and finds the checkpoint by itself: leave out one of both")
    if not request.recipes:
        raise ConfigurationError("--resume goes on with the newest run of a recipe: add --config RECIPE")
    flags = (flag.partition("=")[2] or after for flag, after in pairwise([*request.others, ""]) if flag.partition("=")[0] == ROOT)
    root = next(flags, None) or (recipe.get("trainer") or {}).get("default_root_dir") or "runs"
    run = newest_run(Path(root) / run_name(request.recipes[0]))
    path = None if run is None else newest_checkpoint(run / "checkpoints")
    if run is None or path is None:
        say("note: --resume found no checkpoint of this recipe, so the run starts anew")
        return None, None
    for draft in run.glob("checkpoints/.*.ckpt.*.tmp"):  # a kill leaves what was being written
        rank_zero_only(draft.unlink)(missing_ok=True)
    say(f"note: going on from {short_path(str(path))}")
    return run, str(path)


def run_name(recipe: str) -> str:
    """Return what the runs of a recipe are called: by its name if it comes with attnkit, else by its file."""
    path, folder = find_recipe(recipe).resolve(), recipe_folder().resolve()
    return path.relative_to(folder).with_suffix("").as_posix() if path.is_relative_to(folder) else path.stem


def newest_run(folder: Path) -> Path | None:
    """Return the folder `version_N` with the greatest N."""
    runs = [path for path in folder.glob("version_*") if path.name[8:].isdigit()]
    return max(runs, key=version_of, default=None)


def version_of(run: Path) -> int:
    """Return the number of a run.

    Example:
        >>> version_of(Path("runs/g2p/transformer/version_12"))
        12
    """
    return int(run.name[8:])


def next_version(folder: Path) -> int:
    """Return the smallest N so that neither `version_N` nor a later one is in `folder`."""
    run = newest_run(folder)
    return 0 if run is None else version_of(run) + 1


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint in a folder that can be used.

    One that is damaged is put aside under another name, with a warning, so that it never takes the place of a good one. So is one of
    between two micro-batches of a step (`ModelCheckpoint` writes it if a validation falls there), unless there is no other.
    """
    within_step: list[Path] = []
    for path in sorted(folder.glob("*.ckpt"), key=lambda p: p.stat().st_mtime_ns, reverse=True):
        try:
            description = require_undamaged(path)
        except CheckpointError as error:
            say(f"warning: {error}; it is put aside as {path.name}{DAMAGED}, and an earlier one is used")
            rank_zero_only(path.replace)(path.with_name(path.name + DAMAGED))
            continue
        if not description.get(WITHIN_STEP):
            for newer in within_step:
                say(f"note: {newer.name} is from within a step; it is put aside as {newer.name}{INEXACT}, and made again")
                rank_zero_only(newer.replace)(newer.with_name(newer.name + INEXACT))
            return path
        within_step.append(path)
    return next(iter(within_step), None)
