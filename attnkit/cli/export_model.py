"""`attnkit export --format transformers`: a language model as a folder that other programs read."""

from pathlib import Path
from typing import Any

from attnkit import convert
from attnkit.checkpoint import is_exported, load_checkpoint, load_exported, rebuild
from attnkit.checkpoint.description import saved_recipe


def export_model(checkpoint: str, out: str, *, model_type: str | None, context: int | None) -> None:
    """Write the task of a checkpoint, or of a file of `attnkit export`, as a folder in transformers' format, and print its type."""
    found: dict[str, Any] = {} if is_exported(checkpoint) else load_checkpoint(checkpoint)
    task = rebuild(found, checkpoint) if found else load_exported(checkpoint)
    data = saved_recipe(found).get("data")
    trained = data.get("context", data.get("max_length")) if isinstance(data, dict) else None
    length = context if context is not None or not isinstance(trained, int) else trained
    saved = convert.save(task, out, model_type=model_type, context=length, mode=Path(checkpoint).stat().st_mode)
    print(f"Wrote {out}: {saved.model_type}{' (averaged weights)' if 'averaging_state' in found else ''}")
    for note in saved.notes:
        print(f"  note: {note}")
