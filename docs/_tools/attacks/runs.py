"""The files that a run writes, compared bit by bit with those of another run."""

import csv
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

EXACT = ("global_step", "epoch", "state_dict", "optimizer_states", "lr_schedulers", "current_model_state")
"""The keys that are equal to the last bit in checkpoints of equal runs; the others hold folders and times."""
TIMED = "speed/"


def newest_run(folder: Path) -> Path | None:
    """Return the newest run of the recipe in a folder: `runs/*/version_N` with the largest N."""
    return max(folder.glob("runs/*/version_*"), key=lambda path: int(path.name.removeprefix("version_")), default=None)


def compare_runs(expected: Path, run: Path | None) -> list[str]:
    """Return how a run differs from an undisturbed one: rows of `metrics.csv` and checkpoints."""
    if run is None:
        return ["there is no run"]
    found = compare_rows(read_rows(expected / "metrics.csv"), read_rows(run / "metrics.csv"))
    for checkpoint in sorted((expected / "checkpoints").glob("*.ckpt")):
        if checkpoint.name != "previous.ckpt":
            found += compare_checkpoints(checkpoint, run / "checkpoints" / checkpoint.name)
    return found


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file without timing columns, which differ in each run; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: value for name, value in row.items() if not str(name).startswith(TIMED)} for row in csv.DictReader(file)]


def compare_rows(expected: list[dict[str, str]], found: list[dict[str, str]]) -> list[str]:
    """Return how rows differ.

    Example:
        >>> one, two = {"step": "1", "loss": "0.5"}, {"step": "2", "loss": "0.25"}
        >>> compare_rows([one, two], [one, two, two])
        ["metrics.csv has 3 rows, expected 2; row 2 occurs twice: {'step': '2', 'loss': '0.25'}"]
        >>> compare_rows([one, two], [one, {"step": "2", "loss": "0.26"}])
        ["metrics.csv: row 1 is {'step': '2', 'loss': '0.26'}, expected {'step': '2', 'loss': '0.25'}"]
    """
    if expected == found:
        return []
    if len(expected) != len(found):
        message = f"metrics.csv has {len(found)} rows, expected {len(expected)}"
        known = Counter(tuple(row.items()) for row in expected)
        for number, row in enumerate(found):
            known[tuple(row.items())] -= 1
            if known[tuple(row.items())] < 0:
                twice = row in found[:number]
                return [f"{message}; row {number} {'occurs twice' if twice else 'was not expected'}: {row}"]
        missing = next(row for row in expected if row not in found)
        return [f"{message}; missing: {missing}"]
    number = next(i for i, (one, other) in enumerate(zip(expected, found, strict=True)) if one != other)
    return [f"metrics.csv: row {number} is {found[number]}, expected {expected[number]}"]


def compare_checkpoints(expected: Path, found: Path) -> list[str]:
    """Return how two checkpoints differ, files or sharded folders. An unreadable one differs."""
    from attnkit.checkpoint import load_checkpoint

    if not found.exists():
        return [f"{found.name} is missing"]
    try:
        one, other = load_checkpoint(expected), load_checkpoint(found)
    except Exception as error:
        return [f"{found.name} cannot be read: {error}"]
    for key in EXACT:
        first = next(differences(one.get(key), other.get(key), key), None)
        if first is not None:
            return [f"{found.name}: {first}"]
    return []


def differences(expected: Any, found: Any, where: str) -> Iterator[str]:
    """Yield where two values differ, comparing tensors bit by bit.

    Example:
        >>> list(differences({"w": torch.tensor([1.0])}, {"w": torch.tensor([1.0 + 2**-23])}, "state_dict"))
        ['state_dict.w differs in 1 of 1 elements']
        >>> list(differences({"step": 3, "nan": float("nan")}, {"step": 4, "nan": float("nan")}, "optimizer"))
        ['optimizer.step is 4, expected 3']
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in expected | found:
            if key not in found or key not in expected:
                yield f"{where}.{key} is {'missing' if key in expected else 'too much'}"
            else:
                yield from differences(expected[key], found[key], f"{where}.{key}")
    elif isinstance(expected, list | tuple) and isinstance(found, list | tuple) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{where}.{number}")
    elif isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        if expected.dtype != found.dtype or expected.shape != found.shape:
            yield f"{where} is {found.dtype} {tuple(found.shape)}, expected {expected.dtype} {tuple(expected.shape)}"
        elif not torch.equal(_bits(expected), _bits(found)):
            unequal = (_bits(expected) != _bits(found)).reshape(expected.numel(), -1).any(1).sum()
            yield f"{where} differs in {unequal} of {expected.numel()} elements"
    elif expected != found and not (expected != expected and found != found):
        yield f"{where} is {found!r}, expected {expected!r}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def traceback_in(file: Path) -> list[str]:
    """Return the last line of a traceback in the output of a process, if there is one."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    if not any(line.startswith("Traceback (most recent call last)") for line in lines):
        return []
    errors = [line for line in lines if line[:1].isalpha() and ("Error" in line or "Exception" in line)]
    return [f"a traceback: {(errors or lines)[-1][:300]}"]


def tail(file: Path) -> str:
    """Return the last line of a process's output."""
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n") if file.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "")[:300]


def fresh(folder: Path) -> Path:
    """Create an empty folder and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
