"""Hostile data sets of the `datasets` library."""

import os
from pathlib import Path


def _rows(folder: Path, text: str) -> Path:
    os.environ["HF_DATASETS_CACHE"] = str(folder.parent / "hub")
    (folder / "mine").mkdir()
    (folder / "mine" / "train.jsonl").write_text(text)
    return folder / "mine"


def hub_null(folder: Path) -> Path:
    """Rows with nothing in them."""
    return _rows(folder, '{"text": null, "label": null}\n' * 5)


def hub_nested(folder: Path) -> Path:
    """Rows with a list in place of a text."""
    return _rows(folder, '{"text": [["a"]], "label": {"b": 1}}\n' * 5)


def hub_deep(folder: Path) -> Path:
    """Rows that are nested 1,000 deep."""
    return _rows(folder, '{"text": ' + "[" * 1000 + "]" * 1000 + ', "label": "a"}\n')


def hub_code(folder: Path) -> Path:
    """A data set that is a script."""
    (folder / "mine").mkdir()
    (folder / "mine" / "mine.py").write_text("import os; os.system('touch ran')\n")
    return folder / "mine"
