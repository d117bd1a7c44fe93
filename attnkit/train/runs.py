"""The runs of a recipe: folders `version_0`, `version_1`, ... with checkpoints, each held by the process that runs it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

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
STARTED = (EVENTS, RECIPE, "hparams.yaml")  # the files that a run writes before its first step


def find_run(
    request: Request, command: str, recipe: Mapping[str, Any], ckpt_path: str | None, claims: ExitStack
) -> tuple[Path | None, str | None]:
    """Return the folder and the newest checkpoint of a recipe's newest run, for `--resume`, or (None, None) and a note if there is none.

    A run whose loggers are the user's own has no folder of attnkit's; the index at `index_of` says where its checkpoints are.

    The first process claims the folder before it looks into it, and holds it until the end of `claims`, so a live run is never touched: it
    causes an `OwnedError`.
    """
    if command != "fit":
        raise ConfigurationError(f"--resume is for `fit`: remove it, and give `{command}` the checkpoint by --ckpt_path PATH")
    if ckpt_path not in (None, "last"):
        where = "--ckpt_path" if request.ckpt_path else "the key ckpt_path of the recipe"
        raise ConfigurationError(f"--resume finds the checkpoint by itself: remove it or {where}")
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
            continue  # a start that failed does not count
        if (path := _take_over(run, run / "checkpoints", claims)) is not None:
            say(f"note: resuming from {short_path(str(path))}")
            return run, str(path)
        break
    say("note: --resume found no checkpoint of this recipe, so a new run starts")
    return None, None


def index_of(request: Request, recipe: Mapping[str, Any]) -> Path:
    """Return the index of the runs of a request's recipe with its loggers."""
    return index_at(_folder_of(request, recipe), loggers_in(request, recipe))


def _folder_of(request: Request, recipe: Mapping[str, Any]) -> Path:
    """Return the folder of the runs of a request's recipe."""
    root = (
        next((value for key, value in request.other_flags() if key == ROOT), None)
        or (recipe.get("trainer") or {}).get("default_root_dir")
        or "runs"
    )
    return Path(root) / run_name(request.recipes[0])


def _take_over(folder: Path, checkpoints: Path, claims: ExitStack) -> Path | None:
    """Claim a folder if a process holds it or there are checkpoints, and return the newest of these."""
    if is_first() and (any(checkpoints.glob("*.ckpt")) or owner_of(folder) is not None):
        claims.enter_context(owned(folder, say=say))
        for draft in checkpoints.glob(".*.ckpt*.tmp"):  # a killed process leaves its drafts behind
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
            continue  # another process was faster
    with owned(run):
        try:
            yield version_of(run)
        except BaseException:
            _remove_if_empty(run)
            raise


def _remove_if_empty(run: Path) -> None:
    """Remove the folder of a run without checkpoints and metrics; files that attnkit did not write are kept."""
    if (run / METRICS).exists() or any(run.glob("checkpoints/*")):
        return
    for pattern in STARTED:
        for path in run.glob(pattern):
            path.unlink()
    disown(run)
    with suppress(OSError):  # there are other files
        if (run / "checkpoints").exists():
            (run / "checkpoints").rmdir()
        run.rmdir()


def is_first() -> bool:
    """Return whether this process is the first of its run, the only one that holds the folder and writes."""
    return not getattr(rank_zero_only, "rank", 0)


def run_name(recipe: str) -> str:
    """Return the name of a recipe's runs: its short name if it comes with attnkit, else the name of its file."""
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

    A damaged one is renamed, with a warning, so that it never replaces a good one. So is one saved between two micro-batches of a step
    (`ModelCheckpoint` writes it if a validation falls there), unless there is no other.
    """
    within_step: list[Path] = []
    for path in sorted(folder.glob("*.ckpt"), key=lambda p: p.stat().st_mtime_ns, reverse=True):
        try:
            description = require_undamaged(path)
        except MissingComponentError:
            raise  # the checkpoint is intact
        except CheckpointError as error:
            say(f"warning: {error}; it was renamed to {path.name}{DAMAGED}, and an earlier one is used")
            rank_zero_only(path.replace)(path.with_name(path.name + DAMAGED))
            continue
        if not description.get(WITHIN_STEP):
            for newer in within_step:
                say(f"note: {newer.name} was saved within a step; it was renamed to {newer.name}{INEXACT}, and will be written again")
                rank_zero_only(newer.replace)(newer.with_name(newer.name + INEXACT))
            return path
        within_step.append(path)
    return next(iter(within_step), None)
