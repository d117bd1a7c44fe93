"""Results on disk: a folder for each run, named after all that it depends on; JSON files that appear whole or not at all.

    runs/ablations/runs/<key>/    job.json, status.json, result.json, environment.json, stdout.txt, stderr.txt, checkpoints/
    runs/ablations/<study>/       study.json, report.*

Runs are shared by the studies of a folder. There is no database: many processes may write at once, each to its own files.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnkit.ownership import owner_of
from attnkit.registry import ConfigurationError

FINAL = ("ok", "diverged", "failed")
"""What a status can be when a run is over. A run without one was never begun, or was cut short and is continued."""


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

    Example:
        >>> key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]


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


def read_json(path: Path) -> Any:
    """Return what a file holds; None if there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def status_of(run: Path) -> dict[str, Any]:
    """Return what is known of a run.

    `status` is one of `FINAL`; or `running` if a process, the `owner`, is at it; `interrupted` if one was; `pending` if none ever was.
    """
    found = read_json(run / "status.json")
    if found is not None:
        return dict(found)
    if not (run / "stderr.txt").exists():
        return {"status": "pending"}
    owner = owner_of(run)
    return {"status": "interrupted"} if owner is None else {"status": "running", "owner": owner}
