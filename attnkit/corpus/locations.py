"""Locations of the rows of a split (paths, patterns and hub data sets), and the options that have an effect on them."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attnkit.corpus.hub import HUB
from attnkit.corpus.image_reading import ARRAYS
from attnkit.corpus.reading import check
from attnkit.files import search
from attnkit.registry import ConfigurationError

Locations = str | list[str]

_HUB = "data sets of the hub"
_KINDS = {".txt": ".txt files", **dict.fromkeys(ARRAYS, "arrays"), **dict.fromkeys((".tsv", ".csv", ".jsonl", ".parquet"), "tables")}
READ_BY: Mapping[str, tuple[str, ...]] = {
    "columns": ("tables", _HUB, ".txt files"),  # with .txt files, they apply to a table for prediction
    "max_rows": ("tables", _HUB),
    "streaming": (_HUB,),
    "separator": (".txt files",),
}
"""The kinds of locations that each option has an effect on."""


def expand(locations: Locations) -> list[str]:
    """Return the files and hub data sets of `locations`, which must exist and differ; matches of a pattern are sorted by name."""
    found: list[str] = []
    for location in [locations] if isinstance(locations, str) else locations:
        if location.startswith(HUB) or Path(location).exists() or not set(location) & set("*?["):
            found.append(location)
        elif matches := search(location):
            found += matches
        else:
            raise ConfigurationError(f"no file matches {location!r} (looked from {Path.cwd()})")
    seen: dict[str, str] = {}
    for location in found:
        check(location)
        file = location if location.startswith(HUB) else os.path.realpath(location)
        if file in seen:
            same = "is listed twice" if seen[file] == location else f"is the same file as {seen[file]}"
            raise ConfigurationError(f"{location} {same}, so its rows would count twice: list it once")
        seen[file] = location
    return found


def refuse_unread_options(options: Mapping[str, Any], given: Iterable[Locations | None], *, from_hub: bool) -> None:
    """Raise if an option in `READ_BY` is set but has no effect on any location; `from_hub` says whether some are on the hub."""
    lists = [[one] if isinstance(one, str) else one or [] for one in given]
    kinds = {_kind(location) for listed in lists for location in listed} | ({_HUB} if from_hub else set())
    if not kinds or "unknown" in kinds:
        return
    for name, readers in READ_BY.items():
        if options[name] not in (None, False) and not kinds & set(readers):
            raise ConfigurationError(f"{name} has no effect on {' and '.join(sorted(kinds))}, only on {' and '.join(readers)}; remove it")


def _kind(location: str) -> str:
    """Return the kind of a location, or `unknown`, as for a pattern that may match files of several kinds."""
    if location.startswith(HUB):
        return _HUB
    return "folders" if Path(location).is_dir() else _KINDS.get(Path(location).suffix, "unknown")
