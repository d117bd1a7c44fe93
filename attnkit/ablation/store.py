"""Results on disk: a folder for each run, named after all that it depends on; JSON files that appear whole or not at all.

    runs/ablations/runs/<key>/    job.json, status.json, result.json, environment.json, stdout.txt, stderr.txt, checkpoints/
    runs/ablations/<study>/       study.json, report.*

Runs are shared by the studies of a folder. There is no database: many processes may write at once, each to its own files.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnkit.files import LARGEST_JSON, parse_json, read_text
from attnkit.ownership import owner_of
from attnkit.registry import ConfigurationError

FINAL = ("ok", "diverged", "failed")
"""What a status can be when a run is over. A run without one was never begun, or was cut short and is continued."""


_NUMBERS = ("parameters", "batches", "tokens", "seconds", "tokens_per_second", "memory", "flops_per_token")

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says when there is no room left."""


@contextmanager
def told_when_full(folder: str | Path) -> Iterator[None]:
    """Raise a `ConfigurationError` that says what to do when there is no room for the results in a folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise ConfigurationError(
            f"the disk of {folder} is full; make room, and run it again: what is finished is kept, the others go on"
        ) from error


def key_of(content: Any) -> str:
    """Return the name of plain data: a hash that does not depend on the order of keys.

    Raises:
        ConfigurationError: A number in it is not finite.

    Example:
        >>> key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
        True
    """
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise ConfigurationError("a number of the study or its recipe is not finite (.nan or .inf); write a finite one") from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_json(path: Path, content: Any) -> None:
    """Write a file of JSON that takes its name when it is whole."""
    write_text(path, json.dumps(content, indent=1))


def write_text(path: Path, text: str) -> None:
    """Write a file that takes its name when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a file; also where there is something else in its place, or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Return what a file holds; None if there is none.

    Raises:
        ConfigurationError: It is damaged.
    """
    if not os.path.lexists(path):
        return None
    try:
        value = parse_json(read_text(path, limit=LARGEST_JSON))
        if value is None:
            raise ValueError("it holds null")
        return value
    except ConfigurationError as error:
        if not os.path.lexists(path):  # removed since, by another process
            return None
        raise ConfigurationError(f"{error}: it is damaged") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is damaged: {error}") from error


def result_of(run: Path) -> dict[str, Any]:
    """Return the result of a run; empty if there is none.

    Raises:
        ConfigurationError: It is damaged, or has been edited into something that no run writes.
    """
    result = read_json(run / "result.json")
    if result is None:
        return {}
    if not isinstance(result, dict) or not _is_row(result.get("metrics")):
        wrong = ["metrics"]
    else:
        wrong = [name for name in _NUMBERS if not _is_number(result.get(name))]
        wrong += [name for name in ("batch_hash", "clock") if not isinstance(result.get(name, ""), str)]
        wrong += [] if _is_table(result.get("curve", [])) else ["curve"]
        lengths = result.get("lengths", {})
        wrong += [] if isinstance(lengths, dict) and all(map(_is_table, lengths.values())) else ["lengths"]
    if wrong:
        raise ConfigurationError(f"{run / 'result.json'} is damaged: {wrong[0]} is not what a run writes")
    return dict(result)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_row, value))


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number, or None: what a run writes for one that is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        return False
    return value is None or -sys.float_info.max <= value <= sys.float_info.max


def status_of(run: Path) -> dict[str, Any]:
    """Return what is known of a run.

    `status` is one of `FINAL`; `damaged` if its status or its result cannot be read, so that it must be run again; `running` if a process,
    the `owner`, is at it; `interrupted` if one was; `pending` if none ever was. With `failed` and `damaged` there are a `kind` and a
    `message`.
    """
    try:
        found = read_json(run / "status.json")
        if found is not None:
            if not isinstance(found, dict) or found.get("status") not in FINAL or not _is_number(found.get("wall_seconds")):
                raise ConfigurationError(f"{run / 'status.json'} is damaged: it has no outcome")
            if found["status"] == "failed" and not all(isinstance(found.get(key), str) for key in ("kind", "message")):
                raise ConfigurationError(f"{run / 'status.json'} is damaged: it does not say how the run failed")
            if found["status"] == "ok" and not result_of(run):
                raise ConfigurationError(f"{run / 'result.json'} is gone")
            if found["status"] == "diverged":
                result_of(run)
            return dict(found)
    except ConfigurationError as error:
        return {"status": "damaged", "kind": "damaged", "message": str(error)}
    if not (run / "stderr.txt").exists():
        return {"status": "pending"}
    owner = owner_of(run)
    return {"status": "interrupted"} if owner is None else {"status": "running", "owner": owner}
