"""Data modules over files of a test."""

from typing import Any

from attnkit import datasets

OF_FILES = (
    "train", "validation", "test", "columns", "separator", "validation_fraction", "test_fraction", "max_rows", "streaming", "on_bad_rows",
)  # fmt: skip


def framed(name: str, **arguments: Any) -> Any:
    """Build a data module; the arguments that the corpus `files` has are those of its corpus."""
    files = {key: arguments.pop(key) for key in OF_FILES if key in arguments}
    return datasets.build({"name": name, "corpus": {"name": "files", **files}, **arguments})
