"""Hostile tables of texts."""

import os
from pathlib import Path

from tests.hostile.files.writing import text


def jsonl_deep(folder: Path) -> Path:
    """A million lists inside each other."""
    return text(folder, "a.jsonl", '{"text": ' + "[" * 1_000_000 + "]" * 1_000_000 + "}")


def jsonl_deep_enough(folder: Path) -> Path:
    """As deep as the parser goes, so that what prints it fails."""
    return text(folder, "a.jsonl", '{"text": ' + "[" * 700 + "]" * 700 + "}")


def jsonl_huge_integer(folder: Path) -> Path:
    """An integer with more digits than Python converts."""
    return text(folder, "a.jsonl", '{"text": "a", "n": ' + "9" * 100_000 + "}")


def jsonl_surrogate(folder: Path) -> Path:
    """Half of a surrogate pair, as an escape."""
    return text(folder, "a.jsonl", '{"text": "\\ud800"}')


def jsonl_nan(folder: Path) -> Path:
    """NaN in place of a text."""
    return text(folder, "a.jsonl", '{"text": NaN}')


def jsonl_device(folder: Path) -> Path:
    """A link to a device that never ends."""
    (folder / "a.jsonl").symlink_to("/dev/zero")
    return folder / "a.jsonl"


def tsv_latin(folder: Path) -> Path:
    """Bytes that are not UTF-8."""
    return text(folder, "a.tsv", b"text\ncaf\xe9\n")


def tsv_pipe(folder: Path) -> Path:
    """A pipe that nobody writes to."""
    os.mkfifo(folder / "a.tsv")
    return folder / "a.tsv"


def csv_formula(folder: Path) -> Path:
    """A header without the column, whose names are formulas."""
    return text(folder, "a.csv", "=cmd(),@x\n1,2\n")
