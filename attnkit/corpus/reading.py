"""Reads text columns from data files and hub data sets; errors name the line."""

import json
import math
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnkit.corpus.hub import HUB, hub_parts, hub_rows
from attnkit.corpus.media import Stored
from attnkit.corpus.tables import BadRows, Column, Row, csv_rows, lines, no_column, tsv_rows
from attnkit.files import parse_json
from attnkit.parquet import read_parquet
from attnkit.registry import ConfigurationError, nearest
from attnkit.wording import counted

_UNPACK = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".zip": "unzip"}

Fault = Callable[[tuple[str, ...]], str | None]
"""Returns the fault in the texts of a row, or None."""


def check(location: str) -> None:
    """Raise a `ConfigurationError` if a location cannot be read, as far as this can be seen without reading it."""
    if location.startswith(HUB):
        hub_parts(location)
        return
    path = Path(location)
    if not path.is_file():
        beside = [f.name for f in path.parent.iterdir() if f.is_file()] if path.parent.is_dir() else []
        raise ConfigurationError(
            f"there is no data file {location!r} (looked in {path.parent.resolve()}).{nearest(path.name, beside)} "
            f"For a data set from the hub, write 'hub:NAME:SPLIT'"
        )
    if path.suffix not in _READERS:
        unpack = _UNPACK.get(path.suffix)
        near, hint = ("", f"decompress the file, as with: {unpack}") if unpack else (nearest(path.suffix, _READERS), "rename the file")
        raise ConfigurationError(f"{location}: unknown suffix {path.suffix!r}.{near} Known: {', '.join(_READERS)}; {hint}")


def read_columns(
    location: str,
    columns: Sequence[Column],
    *,
    numbers: Collection[Column] = (),
    bad_rows: BadRows | None = None,
    stored: dict[str, Stored] | None = None,
) -> list[tuple[str, ...]]:
    """Return the rows of `iterate_columns` as a list; raise a `ConfigurationError` if there are none."""
    texts = list(iterate_columns(location, columns, numbers=numbers, bad_rows=bad_rows, stored=stored))
    if not texts and bad_rows:
        raise ConfigurationError(f"{location} has no usable row. The first skipped row: {bad_rows.first}")
    if not texts:
        raise ConfigurationError(f"{location} is empty: it has no examples")
    return texts


def iterate_columns(
    location: str,
    columns: Sequence[Column],
    *,
    numbers: Collection[Column] = (),
    bad_rows: BadRows | None = None,
    streaming: bool = False,
    fault: Fault | None = None,
    stored: dict[str, Stored] | None = None,
) -> Iterator[tuple[str, ...]]:
    """Yield the texts in some columns of a data file or a hub data set, row by row.

    - `.tsv`: tab-separated cells without quoting. A header line has the names in `columns`; without one, columns are positions, and the
      names `source` and `target`, `text` and `label`, or `file` and `text` mean 0 and 1.
    - `.csv`: quoting as in RFC 4180, with cells of at most 16 Mi characters; a header line, or positions.
    - `.jsonl`: one object per line.
    - `.parquet`: read by pyarrow.
    - `.txt`: one text per line, in a single column of any name; blank lines are texts too.
    - `hub:NAME:SPLIT` or `hub:NAME:CONFIG:SPLIT`: read by the `datasets` library; NAME may also be a folder.

    Text is UTF-8. Except in `.txt`, blank lines and rows of empty cells are skipped, but not "" in a `.csv` of one column. A name such as
    `translation.de` reaches into nested objects, and `answers.text.0` to the first element of a list.

    A row is bad if it has more or fewer cells than the header (or, without one, than the first row), if a column is missing, null or not
    text, if a label is empty, if a list is too short, or if it is not a JSON object, not CSV or not UTF-8. Bad rows are errors unless
    `bad_rows` skips them; a header that repeats the name of a column, or a quote that is never closed in a CSV file, are always errors.

    `numbers` are the columns of labels and numbers: they may also hold numbers, which are returned as strings, and must not be empty.
    `fault` detects further bad rows. If `stored` is given, the first column of a hub data set holds images or sounds, which are put there;
    see `hub_rows`.
    """
    check(location)
    bad = BadRows() if bad_rows is None else bad_rows
    if location.startswith(HUB):
        rows = hub_rows(
            location, streaming=streaming, media=None if stored is None else columns[0], stored={} if stored is None else stored
        )
    else:
        rows = _READERS[Path(location).suffix](location, columns, bad)
    for number, (where, row) in enumerate(rows):
        if number == 0 and location.startswith(HUB):
            _require_columns(where, row, columns, bad)
        try:
            texts = tuple(_text(row, column, bad, number=column in numbers) for column in columns)
        except _NoIndex as error:
            if not bad.are_skipped:
                raise ConfigurationError(f"{where}: {error}. {chosen_by(columns)}") from error
            bad.add(where, str(error))
        except _Unusable as error:
            bad.add(where, str(error))
        else:
            reason = None if fault is None else fault(texts)
            if reason is None:
                yield texts
            else:
                bad.add(where, reason)


def chosen_by(columns: Sequence[Column]) -> str:
    """Return advice on how to choose columns other than these."""
    return f"data.corpus.columns chooses the columns, now [{', '.join(map(str, columns))}]"


def _require_columns(where: str, row: Mapping[Any, Any], columns: Sequence[Column], bad: BadRows) -> None:
    """Raise if the first row of a data set lacks a column, which means that all rows do, unless bad rows are skipped."""
    lacking = [column for column in columns if column not in row and str(column).partition(".")[0] not in row]
    if lacking and not bad.are_skipped:
        raise ConfigurationError(f"{where}: {no_column(lacking[0], _names(row), bad)} {chosen_by(columns)}")


def _names(row: Mapping[Any, Any]) -> list[Column]:
    """Return the columns of a row, including those inside objects."""
    inner = [[f"{key}.{name}" for name in value] if isinstance(value, Mapping) else [key] for key, value in row.items()]
    return [name for names in inner for name in names]


class _Unusable(ValueError):
    """A cell is unusable."""


class _NoIndex(_Unusable):
    """A column leads to a list without saying which of its elements is meant."""

    def __init__(self, path: str, value: Sequence[Any], rest: Sequence[str] = ()) -> None:
        super().__init__(
            f"column {'.'.join([path, *rest])!r} leads to a list, {reprlib.repr(value)}: write {'.'.join([path, '0', *rest])!r} for its "
            f"first element"
        )


def _text(row: Mapping[Any, Any], column: Column, bad: BadRows, *, number: bool) -> str:
    value: Any = row
    keys = [column] if column in row or isinstance(column, int) else column.split(".")
    for place, key in enumerate(keys):
        if isinstance(value, list):
            if not str(key).isdecimal():
                raise _NoIndex(".".join(map(str, keys[:place])), value, [str(key) for key in keys[place:]])
            if int(key) >= len(value):
                raise _Unusable(f"no element {key} for column {column!r}: the list has {counted(len(value), 'element')}")
            value = value[int(key)]
            continue
        if not isinstance(value, Mapping) or key not in value:
            raise _Unusable(no_column(column, _names(row), bad))
        value = value[key]
    if isinstance(value, list):
        raise _NoIndex(str(column), value)
    is_null = isinstance(value, float) and math.isnan(value)  # as numeric tables write it
    if number and isinstance(value, int | float) and not is_null:
        return str(value)
    if not isinstance(value, str):
        raise _Unusable(f"column {column!r} must be text, but is {reprlib.repr(value)} ({type(value).__name__})")
    if number and not value.strip():
        raise _Unusable(f"column {column!r} is empty")
    return value


def _jsonl(path: str, columns: Sequence[Column], bad: BadRows) -> Iterator[Row]:
    for number, line in lines(path, bad):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = parse_json(line)
        except ValueError as error:
            bad.add(where, f"not JSON ({error.msg} at column {error.colno})" if isinstance(error, json.JSONDecodeError) else str(error))
            continue
        if isinstance(row, dict):
            yield where, row
        else:
            bad.add(where, f'must be a JSON object such as {{"source": ...}}, but is {line[:40]!r}')


def _txt(path: str, columns: Sequence[Column], bad: BadRows) -> Iterator[Row]:
    if len(columns) > 1:
        raise ConfigurationError(
            f"{path}: a .txt file has one text per line, but columns {list(columns)} are needed; use a .tsv file. To join two files "
            f"line by line: paste FIRST.txt SECOND.txt > both.tsv"
        )
    return ((f"{path}:{number}", {columns[0]: line}) for number, line in lines(path, bad))


def _parquet(path: str, columns: Sequence[Column], bad: BadRows) -> Iterator[Row]:
    return ((f"{path}, row {number}", row) for number, row in enumerate(read_parquet(path)))


_READERS: dict[str, Callable[[str, Sequence[Column], BadRows], Iterator[Row]]] = {
    ".tsv": tsv_rows, ".csv": csv_rows, ".jsonl": _jsonl, ".parquet": _parquet, ".txt": _txt,
}  # fmt: skip
