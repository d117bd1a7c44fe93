"""Columns of text out of data files and hub data sets; what is wrong with a file is said with its line number."""

import csv
import json
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from attnkit.files import parse_json, read_parquet
from attnkit.registry import ConfigurationError, nearest

HUB = "hub:"
DEFAULT_COLUMNS = (("source", "target"), ("text", "label"))  # of a TSV file without a header line

Column = str | int
Row = tuple[str, Mapping[Any, Any]]  # where it stands, for messages, and its cells by column


def check(location: str) -> None:
    """Check that a location can be read, as far as that shows without reading it.

    Raises:
        ConfigurationError: There is no such file, its suffix is unknown, or a hub location is not `hub:NAME[:CONFIG]:SPLIT`.
    """
    if location.startswith(HUB):
        _hub_parts(location)
        return
    path = Path(location)
    if not path.is_file():
        beside = [f.name for f in path.parent.iterdir()] if path.parent.is_dir() else []
        raise ConfigurationError(
            f"there is no data file {location!r} (looked in {path.parent.resolve()}).{nearest(path.name, beside)} "
            f"For a data set of the hub write 'hub:NAME:SPLIT'"
        )
    if path.suffix not in _READERS:
        raise ConfigurationError(
            f"{location}: unknown suffix {path.suffix!r}.{nearest(path.suffix, _READERS)} Known: {', '.join(_READERS)}; rename the file"
        )


def read_columns(location: str, columns: Sequence[Column], *, numbers: Collection[Column] = ()) -> list[tuple[str, ...]]:
    """Read some columns of a data file, or of a hub data set.

    Args:
        location: A path, or a hub location.
        columns: Names, or positions from 0 in a file without a header line.
        numbers: Those of the columns that may hold numbers too; they come as texts.

    Raises:
        ConfigurationError: As `iterate_columns`; or there are no rows.
    """
    texts = list(iterate_columns(location, columns, numbers=numbers))
    if not texts:
        raise ConfigurationError(f"{location} is empty: it has no examples")
    return texts


def iterate_columns(location: str, columns: Sequence[Column], *, numbers: Collection[Column] = ()) -> Iterator[tuple[str, ...]]:
    """Read some columns of a data file, or of a hub data set, row by row.

    - `.tsv`: cells between tabs, nothing quoted. With a header line that has the names in `columns`; without one the columns are
      positions, and the names `source` and `target`, or `text` and `label`, stand for 0 and 1.
    - `.csv`: quoting as in RFC 4180; a header line, or positions.
    - `.jsonl`: one object per line.
    - `.parquet`: by pyarrow.
    - `.txt`: one text per line, so it has one column, whatever its name; blank lines are texts too.
    - `hub:NAME:SPLIT` or `hub:NAME:CONFIG:SPLIT`: by the `datasets` library; NAME may be a folder too.

    Text is UTF-8. Blank lines are skipped otherwise. A name such as `translation.de` reaches into nested objects.

    Args:
        location: A path, or a hub location.
        columns: Names, or positions from 0 in a file without a header line.
        numbers: Those of the columns that may hold numbers too; they come as texts.

    Raises:
        ConfigurationError: As `check`; or a line is not UTF-8, lacks a column, or has something other than text there; or a library
            is not installed.
    """
    check(location)
    if location.startswith(HUB):
        rows = _hub(location)
    else:
        rows = _READERS[Path(location).suffix](location, columns)
    for where, row in rows:
        yield tuple(_text(where, row, column, number=column in numbers) for column in columns)


def _text(where: str, row: Mapping[Any, Any], column: Column, *, number: bool) -> str:
    value: Any = row
    for key in [column] if column in row or isinstance(column, int) else column.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise _no_column(where, column, row)
        value = value[key]
    if number and isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise ConfigurationError(f"{where}: column {column!r} must be text, but is {value!r} ({type(value).__name__})")
    return value


def _no_column(where: str, column: Column, found: Iterable[Column], hint: str = "") -> ConfigurationError:
    found = list(found)
    near = nearest(str(column), map(str, found))
    return ConfigurationError(f"{where}: no column {column!r}.{near} Columns found: {', '.join(map(reprlib.repr, found)) or 'none'}.{hint}")


def _lines(path: str) -> Iterator[tuple[int, str]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ConfigurationError(
                    f"{path}:{number}: not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}); "
                    f"convert the file, as with: iconv -f ENCODING -t UTF-8"
                ) from error


def _tsv(path: str, columns: Sequence[Column]) -> Iterator[Row]:
    unnamed = next((names for names in DEFAULT_COLUMNS if set(columns) <= set(names)), None)
    return _table(path, columns, ((number, line.split("\t")) for number, line in _lines(path) if line.strip()), unnamed)


def _csv(path: str, columns: Sequence[Column]) -> Iterator[Row]:
    return _table(path, columns, _csv_cells(path), None)


def _csv_cells(path: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(f"{line}\n" for _, line in _lines(path))
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise ConfigurationError(f"{path}:{reader.line_num}: not CSV ({error})") from error


def _table(path: str, columns: Sequence[Column], lines: Iterator[tuple[int, list[str]]], unnamed: Sequence[str] | None) -> Iterator[Row]:
    """Name the cells of each line: by the header line if there is one, else by `unnamed`, else by position."""
    first = next(lines, None)
    if first is None:
        return
    number, cells = first
    header: Sequence[Column]
    if any(column in cells for column in columns):
        header = cells
    else:
        header = unnamed or range(len(cells))
        lines = chain([first], lines)
    if missing := [column for column in columns if column not in header]:
        raise _no_column(f"{path}:{number}", missing[0], cells, hint=" Without a header line, columns are positions from 0.")
    for number, cells in lines:
        yield f"{path}:{number}", dict(zip(header, cells, strict=False))


def _jsonl(path: str, columns: Sequence[Column]) -> Iterator[Row]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except json.JSONDecodeError as error:
            raise ConfigurationError(f"{path}:{number}: not JSON ({error.msg} at column {error.colno})") from error
        except ValueError as error:
            raise ConfigurationError(f"{path}:{number}: {error}") from error
        if not isinstance(row, dict):
            raise ConfigurationError(f'{path}:{number}: must be a JSON object such as {{"source": ...}}, but is {line[:40]!r}')
        yield f"{path}:{number}", row


def _txt(path: str, columns: Sequence[Column]) -> Iterator[Row]:
    if len(columns) > 1:
        raise ConfigurationError(f"{path}: a .txt file has one text per line, but columns {list(columns)} are needed; use a .tsv file")
    return ((f"{path}:{number}", {columns[0]: line}) for number, line in _lines(path))


def _parquet(path: str, columns: Sequence[Column]) -> Iterator[Row]:
    return _numbered(path, read_parquet(path))


def _hub(location: str) -> Iterator[Row]:
    try:
        yield from _numbered(location, load_hub(location))
    except ConfigurationError:
        raise
    except Exception as error:  # as in load_hub
        raise ConfigurationError(f"{location}: a row cannot be read: {type(error).__name__}: {error}") from error


def load_hub(location: str) -> Any:
    """Return the data set of the `datasets` library at a hub location.

    Raises:
        ConfigurationError: The library is not installed, or cannot load it.
    """
    name, config, split = _hub_parts(location)
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise ConfigurationError(f"{location} needs the library 'datasets': pip install 'attnkit[data]'") from error
    try:
        return library.load_dataset(name, config, split=split)
    except Exception as error:  # not found, no network, no such split, damaged: the library's errors have no base class in common
        raise ConfigurationError(f"{location}: cannot be loaded: {type(error).__name__}: {error}") from error


def _hub_parts(location: str) -> tuple[str, str | None, str]:
    match location.removeprefix(HUB).split(":"):
        case [name, split] if name and split:
            return name, None, split
        case [name, config, split] if name and config and split:
            return name, config, split
    raise ConfigurationError(f"{location!r} must be 'hub:NAME:SPLIT' or 'hub:NAME:CONFIG:SPLIT', as in 'hub:wmt16:de-en:train'")


def _numbered(location: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    return ((f"{location}, row {number}", row) for number, row in enumerate(rows))


_READERS: dict[str, Callable[[str, Sequence[Column]], Iterator[Row]]] = {
    ".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet, ".txt": _txt,
}  # fmt: skip
