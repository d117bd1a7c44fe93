"""The folder of a run, with JSON files that are written atomically. No torch.

    job.json, status.json, result.json, progress.json, provenance.json, records.json, recipe.yaml, stdout.txt, stderr.txt, checkpoints/,
    wandb-N.json (the last steps of logger N)

There is no database: processes may write concurrently, each to its own files.
"""

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from attnkit.files import LARGEST_JSON, parse_json, read_text, write_text
from attnkit.ownership import owner_of
from attnkit.registry import ConfigurationError
from attnkit.worker.records import read

FULL = (errno.ENOSPC, errno.EDQUOT)  # the error numbers of a full disk
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)  # the error numbers of a folder that this process cannot write to
BUSY = 75  # exit status of a run that another process is working on (EX_TEMPFAIL of sysexits.h)
Outcome = Literal["ok", "diverged", "failed"]
FINAL: tuple[str, ...] = get_args(Outcome)
"""How a run can end. A run without an outcome was never started, is running, or was interrupted and can be continued."""
FINISHED = ("ok", "diverged")
"""The outcomes of runs that `retry` does not repeat."""

PROVENANCE = "provenance.json"  # the provenance of the run: an `attnkit.worker.provenance.Provenance`
RECORDS = "records.json"  # the names of the records of the run's loggers: an `attnkit.worker.loggers.Records`
UNDERWAY = "progress.json"  # the progress of an unfinished run: an `attnkit.worker.answers.Underway`

SPECIAL = {"source": 1, "target": 2}
"""The number of special tokens on each side, which count towards `data.max_length`: eos, and on the target side also bos."""

T = TypeVar("T")
Row = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The measurements of a run; non-finite numbers are None.

    `examples` holds, for each metric that is a mean over examples, its numerators and denominators summed over groups of examples; see
    `attnkit.worker.evaluation`. `example_set` is a checksum of these examples, None in results of earlier versions. `batch_hash` omits
    values of the types in `unhashed`. `starts` holds the shape and a hash of each parameter before the first step, except of those
    sharded by a strategy.
    """

    metrics: Row
    curve: tuple[Row, ...] = ()
    lengths: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    examples: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    example_set: str | None = None
    parameters: int | None = None
    batches: int | None = None
    batch_hash: str = ""
    starts: Mapping[str, str] = field(default_factory=dict)
    unhashed: tuple[str, ...] = ()
    tokens: int | None = None
    tokens_per_second: float | None = None
    seconds: float | None = None
    clock: str = ""
    memory: float | None = None
    flops_per_token: float | None = None
    elementwise_per_token: float | None = None
    budget: Any = None


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a run ended."""

    status: Outcome
    wall_seconds: float | None = None
    kind: str = ""
    message: str = ""
    in_training: bool | None = None  # True if it failed between the start of its first step and the end of its training

    def __post_init__(self) -> None:
        if self.status == "failed" and not (self.kind and self.message):
            raise ConfigurationError("it does not say how the run failed")


def key_of(content: Any) -> str:
    """Return a hash that names plain data, independent of the order of keys. Numbers must be finite.

    Example:
        >>> key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
        True
    """
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise ConfigurationError("a number in the study or its recipe is not finite (.nan or .inf); use a finite one") from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or None if it does not exist; raise a `ConfigurationError` if it is damaged."""
    try:
        value = parse_json(read_text(path, limit=LARGEST_JSON))
    except ConfigurationError as error:
        if not os.path.lexists(path):
            return None
        raise ConfigurationError(f"{error}: it is damaged") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is damaged: {error}") from error
    if value is None:
        raise ConfigurationError(f"{path} is damaged: it contains null")
    return value


def read_record(cls: type[T], path: Path) -> T | None:
    """Return the dataclass stored in a JSON file, or None if the file does not exist; raise a `ConfigurationError` if it is invalid."""
    if (found := read_json(path)) is None:
        return None
    try:
        return read(cls, found, where="its content")
    except ConfigurationError as error:
        raise ConfigurationError(f"{path} is damaged: {error}") from error


def stored(cls: type[T], path: Path) -> T | None:
    """Return the dataclass stored in a JSON file, or None if the file does not exist or is invalid."""
    try:
        return read_record(cls, path)
    except ConfigurationError:
        return None


def result_of(run: Path) -> dict[str, Any]:
    """Return the measured fields of a run's `Result`, empty without a result; raise a `ConfigurationError` if it is damaged."""
    found = read_record(Result, run / "result.json")
    return {} if found is None else known(found)


def known(record: Result | Status) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in vars(record).items() if value not in (None, "")}


def status_of(run: Path) -> dict[str, Any]:
    """Return the state of a run.

    `status` is one of `FINAL`; `damaged` if the status or the result cannot be read, so that the run must be repeated; `running` if a
    process, the `owner`, is working on it; `interrupted` if one was; `pending` if none ever was. `failed` and `damaged` come with a `kind`
    and a `message`.
    """
    try:
        if (found := read_record(Status, run / "status.json")) is not None:
            if found.status != "failed" and not result_of(run) and found.status == "ok":
                raise ConfigurationError(f"{run / 'result.json'} is missing")
            return known(found)
    except ConfigurationError as error:
        return {"status": "damaged", "kind": "damaged", "message": str(error)}
    if not (run / "stderr.txt").exists():
        return {"status": "pending"}
    owner = owner_of(run)
    return {"status": "interrupted"} if owner is None else {"status": "running", "owner": owner}


def note(run: Path, kind: str, message: str) -> None:
    """Record that a run failed, unless it already has an outcome."""
    if status_of(run)["status"] not in FINAL:
        write_json(run / "status.json", {"status": "failed", "kind": kind, "message": message})
