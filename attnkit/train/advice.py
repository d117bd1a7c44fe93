"""The next steps after a run, as exact commands."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from attnkit.callback import LastCheckpoint
from attnkit.files import short_path
from attnkit.lightning_internals import averaged_steps
from attnkit.recipe import SPEC_KEYS, class_paths
from attnkit.registry import IMPORTS, ResolvedSpec, module_names
from attnkit.task.generating import TextGenerator
from attnkit.train.runs import runs_in


def how_to_continue(trainer: Trainer, program: Sequence[str], given: Sequence[str], *, resumable_as: str | None) -> str:
    """Return how to continue a stopped fit; `resumable_as` is the name of the run's folder if `--resume` can find it."""
    paths = [c.path for c in trainer.checkpoint_callbacks if isinstance(c, LastCheckpoint) and c.path.exists()]
    command = [*program, "fit", *given]
    if not paths:
        return f"Nothing was saved, because no step finished. Start again with:\n  {shlex.join(command)}"
    if "--resume" not in command:
        run = paths[0].parents[1]
        is_newest = run.name.startswith("version_") and run == runs_in(run.parent)[-1]
        if resumable_as is not None and is_newest and run.parent.name == Path(resumable_as).name:
            command.append("--resume")
        else:
            command = [*_without(command, "--ckpt_path"), "--ckpt_path", short_path(str(paths[0]))]
    return f"Its state is saved. Continue with:\n  {shlex.join(command)}"


def next_commands(
    trainer: Trainer,
    model: LightningModule,
    data: ResolvedSpec | None,
    program: Sequence[str],
    *,
    imports: Sequence[str] = (),
    is_tested: bool = True,
) -> str | None:
    """Return the path of a fit's checkpoint and the commands that use it, or None if there is no checkpoint.

    The commands start with `program` and import the modules `imports`; `is_tested` says whether there is test data.
    """
    paths = [_checkpoint_of(callback) for callback in trainer.checkpoint_callbacks]
    if (path := next(filter(None, paths), None)) is None:
        return None
    path, command, flags = short_path(path), shlex.join(program), "".join(f" --{IMPORTS} {module}" for module in imports)
    quoted = shlex.quote(path)
    steps = averaged_steps(trainer)
    average = f" (averaged weights{'' if steps else ', not yet updated: those of the initial model'})"
    lines = [f"Checkpoint: {path}{'' if steps is None else average}"]
    lines += [f"  {command} test --ckpt_path {quoted}{flags}"] if is_tested else []
    if isinstance(model, TextGenerator) and model.source_tokenizer is not None:
        lines.append(f"  attnkit generate {quoted} TEXT...{flags}")
    elif data is not None and "predict" in data:
        lines.append(f"  {command} predict --ckpt_path {quoted} --data.predict FILE{flags}")
    return "\n".join(lines)


def needed_imports(recipe: Mapping[str, Any], *, known: Collection[str] = ()) -> list[str]:
    """Return the modules that a command must import to use a checkpoint: the recipe's `imports` and the modules of its class paths.

    Leaves out the `known` modules, which the program imports itself.

    Example:
        >>> needed_imports({"imports": ["mine"], "model": {"name": "my_model.Net", "attention": {"name": "additive"}}})
        ['mine', 'my_model']
    """
    modules = [path.rpartition(".")[0] for path in class_paths({key: recipe[key] for key in SPEC_KEYS if key in recipe})]
    return [module for module in dict.fromkeys([*module_names(recipe.get(IMPORTS)), *modules]) if module not in known]


def _without(command: Sequence[str], flag: str) -> list[str]:
    """Remove a flag and its value from a command.

    Example:
        >>> _without(["fit", "--ckpt_path", "a.ckpt", "--ckpt_path=b.ckpt", "-c", "x"], "--ckpt_path")
        ['fit', '-c', 'x']
    """
    return [word for before, word in pairwise(["", *command]) if flag not in (before, word) and not word.startswith(f"{flag}=")]


def _checkpoint_of(callback: Checkpoint) -> str | None:
    """Return the path of the best checkpoint written by a callback, or of the last one if there is no best."""
    if isinstance(callback, ModelCheckpoint):
        return callback.best_model_path or callback.last_model_path or None
    return str(callback.path) if isinstance(callback, LastCheckpoint) and callback.path.exists() else None
