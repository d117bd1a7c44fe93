"""Run folders of a recipe: `version_0`, `version_1`, ..., each held by the process that trains in it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from attnkit.callback.finite_check import KEPT
from attnkit.checkpoint import CheckpointError, MissingComponentError, load_checkpoint, require_undamaged
from attnkit.checkpoint.description import saved_recipe
from attnkit.files import remove, short_path
from attnkit.lightning_internals import METRICS
from attnkit.ownership import disown, owned, owner_of
from attnkit.recipe import find_recipe, recipe_folder
from attnkit.registry import ConfigurationError
from attnkit.task.resume import WITHIN_STEP
from attnkit.train.logs import EVENTS
from attnkit.train.output import say
from attnkit.train.request import Request
from attnkit.train.whereabouts import index_at, loggers_in, read_index

DAMAGED, INEXACT = ".damaged", ".within_step"
ROOT = "--trainer.default_root_dir"
RECIPE = "config.yaml"
STARTED = (EVENTS, RECIPE, "hparams.yaml")  # files that a run writes before its first step


def find_run(
    request: Request, command: str, recipe: Mapping[str, Any], ckpt_path: str | None, claims: ExitStack
) -> tuple[Path | None, str | None]:
    """Return the folder and newest checkpoint of a recipe's newest run, for `--resume`; (None, None), with a note, if there is none.

    A run with the user's own loggers has no attnkit folder; the index at `index_of` lists its checkpoint folders.

    The first process claims the folder before reading it, and holds it until `claims` are closed, so a live run is never touched: it
    raises an `OwnedError`.
    """
    if command != "fit":
        raise ConfigurationError(f"--resume is only for `fit`: remove it, and pass `{command}` the checkpoint with --ckpt_path PATH")
    if ckpt_path not in (None, "last"):
        where = "--ckpt_path" if request.ckpt_path else "ckpt_path in the recipe"
        raise ConfigurationError(f"--resume finds the checkpoint itself: remove --resume or {where}")
    if not request.recipes:
        raise ConfigurationError("--resume continues the newest run of a recipe: add --config RECIPE")
    elsewhere = read_index(index_of(request, recipe))
    for folder in elsewhere:
        path = _take_over(folder, folder, claims)
        if path is not None and saved_recipe(load_checkpoint(path, parts="description")).get("name") == run_name(request.recipes[0]):
            say(f"note: resuming from {short_path(str(path))}")
            return None, str(path)
    is_own = bool(elsewhere or loggers_in(request, recipe))
    for run in () if is_own else reversed(runs_in(_folder_of(request, recipe))):
        owner = owner_of(run) if is_first() else None
        saved = any(run.glob("checkpoints/*.ckpt"))
        if owner is None and not saved and not (run / RECIPE).exists():
            continue  # a failed start does not count
        if (path := _take_over(run, run / "checkpoints", claims)) is not None:
            say(f"note: resuming from {short_path(str(path))}")
            return run, str(path)
        break
    say("note: --resume found no checkpoint of this recipe: starting a new run")
    return None, None


def index_of(request: Request, recipe: Mapping[str, Any]) -> Path:
    """Return the path of the index for the request's recipe and loggers."""
    return index_at(_folder_of(request, recipe), loggers_in(request, recipe))


def _folder_of(request: Request, recipe: Mapping[str, Any]) -> Path:
    """Return the folder with the runs of the request's recipe."""
    root = (
        next((value for key, value in request.other_flags() if key == ROOT), None)
        or (recipe.get("trainer") or {}).get("default_root_dir")
        or "runs"
    )
    return Path(root) / run_name(request.recipes[0])


def _take_over(folder: Path, checkpoints: Path, claims: ExitStack) -> Path | None:
    """Return the newest checkpoint; claim the folder first if it has checkpoints or an owner."""
    if is_first() and (any(checkpoints.glob("*.ckpt")) or owner_of(folder) is not None):
        claims.enter_context(owned(folder, say=say))
        for draft in checkpoints.glob(".*.ckpt*.tmp"):  # left behind by a killed process
            remove(draft)
    return newest_checkpoint(checkpoints)


@contextmanager
def new_run(folder: Path) -> Iterator[int]:
    """Create the next folder `version_N`, hold it until the end of the `with` block, and yield N.

    Concurrent processes each get their own folder. If the run fails before its first step, the folder is removed.
    """
    while True:
        runs = runs_in(folder)
        run = folder / f"version_{version_of(runs[-1]) + 1 if runs else 0}"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            run.mkdir()
            break
        except FileExistsError:
            continue  # another process created it first
    with owned(run):
        try:
            yield version_of(run)
        except BaseException:
            _remove_if_empty(run)
            raise


def _remove_if_empty(run: Path) -> None:
    """Remove the folder of a run without metrics, checkpoints or a kept batch, but keep files that attnkit did not write."""
    if (run / METRICS).exists() or (run / KEPT).exists() or any(run.glob("checkpoints/*")):
        return
    for pattern in STARTED:
        for path in run.glob(pattern):
            path.unlink()
    disown(run)
    with suppress(OSError):  # it has other files
        if (run / "checkpoints").exists():
            (run / "checkpoints").rmdir()
        run.rmdir()


def is_first() -> bool:
    """Return whether this is the first process of its run, the only one that holds the folder and writes."""
    return not getattr(rank_zero_only, "rank", 0)


def run_name(recipe: str) -> str:
    """Return the name of a recipe's runs: its short name if it comes with attnkit, else its file name."""
    path, folder = find_recipe(recipe).resolve(), recipe_folder().resolve()
    return path.relative_to(folder).with_suffix("").as_posix() if path.is_relative_to(folder) else path.stem


def runs_in(folder: Path) -> list[Path]:
    """Return the folders `version_N`, sorted by N."""
    return sorted((path for path in folder.glob("version_*") if path.name[8:].isdecimal()), key=version_of)


def version_of(run: Path) -> int:
    """Return the number of a run.

    Example:
        >>> version_of(Path("runs/g2p/transformer/version_12"))
        12
    """
    return int(run.name[8:])


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest usable checkpoint in a folder.

    A damaged one is renamed, with a warning, so that it never replaces a good one. One saved between two micro-batches of a step, as
    `ModelCheckpoint` does if a validation falls there, is renamed too unless there is no other.
    """
    within_step: list[Path] = []
    for path in sorted(folder.glob("*.ckpt"), key=lambda p: p.stat().st_mtime_ns, reverse=True):
        try:
            description = require_undamaged(path)
        except MissingComponentError:
            raise  # the checkpoint is intact
        except CheckpointError as error:
            say(f"warning: {error}; renamed it to {path.name}{DAMAGED}, using an earlier one")
            rank_zero_only(path.replace)(path.with_name(path.name + DAMAGED))
            continue
        if not description.get(WITHIN_STEP):
            for newer in within_step:
                say(f"note: {newer.name} was saved within a step: renamed it to {newer.name}{INEXACT}; the run will write it again")
                rank_zero_only(newer.replace)(newer.with_name(newer.name + INEXACT))
            return path
        within_step.append(path)
    return next(iter(within_step), None)
