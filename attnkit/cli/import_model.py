"""`attnkit import`: a published model as a file that the other commands read."""

import shlex
from pathlib import Path

from attnkit.checkpoint import export_task
from attnkit.checkpoint.exporting import require_exported
from attnkit.convert import load_task
from attnkit.registry import ConfigurationError
from attnkit.tokenizer.base import MASK


def import_model(folder: str, out: str) -> None:
    """Write the model in a folder as a task, and print its type and size."""
    require_exported(out)
    if Path(out).resolve().parent == Path(folder).resolve() and Path(out).exists():
        raise ConfigurationError(f"{out} is a file of the published model: choose another name")
    task = load_task(folder)
    export_task(task, out, mode=(Path(folder) / "config.json").stat().st_mode)
    parameters, kind = sum(p.numel() for p in task.parameters()), task.registered_name
    print(f"Wrote {out}: {kind}, {parameters:,} parameters, {len(task.tokenizer):,} tokens, {next(task.parameters()).dtype}")
    if kind in ("causal_lm", "masked_lm"):
        print(f"  attnkit generate {shlex.quote(out)} {'TEXT...' if kind == 'causal_lm' else repr(f'TEXT with {MASK}')}")
    else:
        print(f"  from attnkit.task import Task; Task.load({out!r})")
