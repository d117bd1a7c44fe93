"""TSV and CSV tables: lines, cells, columns and unusable rows."""

import codecs
import csv
import re
import reprlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from threading import Lock
from typing import Any, Literal, get_args

from attnkit.registry import ConfigurationError, nearest
from attnkit.wording import counted

LONGEST_CELL = 16 * 2**20  # maximum characters of a CSV cell
DEFAULT_COLUMNS = (("source", "target"), ("text", "label"), ("file", "text"))  # columns of a TSV file without a header line

Column = str | int
OnBadRows = Literal["error", "skip"]
Row = tuple[str, Mapping[Any, Any]]  # its location, for messages, and its cells by column

_WIDE = {"UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)}
_CARRIAGE_RETURN = "a carriage return outside of quotes"
_QUOTES = 'Write a quote inside a cell as "", and enclose the whole cell in quotes'
_limit = Lock()


class BadRows:
    """The unusable rows of one split: `error` raises at the first one, `skip` omits and counts them.

    If a file is read several times, each row counts once. None means `error` for readers without this setting: messages do not mention it.

    Example:
        >>> bad = BadRows("skip")
        >>> for _ in range(2):
        ...     bad.add("train.csv:7", "3 cells, but the header has 2")
        >>> len(bad), bad.first
        (1, 'train.csv:7: 3 cells, but the header has 2')
    """

    def __init__(self, on_bad_rows: OnBadRows | None = None) -> None:
        if on_bad_rows not in (None, *get_args(OnBadRows)):
            raise ConfigurationError(f"on_bad_rows must be error or skip, but is {on_bad_rows!r}")
        self._on_bad_rows = on_bad_rows
        self._places: set[str] = set()
        self.first: str | None = None  # the location of the first skipped row, and its fault
        self.columns: list[Column] = []  # the columns of the last row that lacked one

    def __len__(self) -> int:
        return len(self._places)

    @property
    def are_skipped(self) -> bool:
        """Whether bad rows are omitted."""
        return self._on_bad_rows == "skip"

    def add(self, where: str, reason: str) -> None:
        """Skip a row, or raise a `ConfigurationError` if bad rows are errors."""
        message = f"{where}: {reason}"
        if self._on_bad_rows != "skip":
            hint = "" if self._on_bad_rows is None else ". Correct the row, or omit such rows with on_bad_rows: skip"
            raise ConfigurationError(message.removesuffix(".") + hint if hint else message)
        self._places.add(where)
        self.first = self.first or message


def lines(path: str, bad: BadRows) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a text file, without line ends and byte order mark; lines that are not UTF-8 are bad rows."""
    for number, line, fault in _decoded(path):
        if fault is None:
            yield number, line
        else:
            bad.add(f"{path}:{number}", fault)


def unified(text: str) -> str:
    r"""Replace the line ends `\r\n` in a text with `\n`, as reading CSV cells and `.txt` files does.

    Example:
        >>> unified("so good,\r\nreally")
        'so good,\nreally'
    """
    return re.sub(r"\r+\n", "\n", text) if "\r" in text else text


def tsv_rows(path: str, columns: Sequence[Column], bad: BadRows) -> Iterator[Row]:
    """Yield the rows of a TSV file; see `reading.iterate_columns`."""
    unnamed = next((names for names in DEFAULT_COLUMNS if set(columns) <= set(names)), None)
    cells = ((number, line.split("\t")) for number, line in lines(path, bad))
    return _table(path, columns, cells, bad, unnamed=unnamed, hint="a cell cannot contain a tab: write such a table as .csv or .jsonl")


def csv_rows(path: str, columns: Sequence[Column], bad: BadRows) -> Iterator[Row]:
    """Yield the rows of a CSV file; see `reading.iterate_columns`."""
    hint = 'a cell with a comma in it must be in "quotes"'
    return _table(path, columns, _csv_cells(path, bad), bad, unnamed=None, hint=hint, quotes=True)


def no_column(column: Column, found: Iterable[Column], bad: BadRows, hint: str = "") -> str:
    """Return the message about a missing column, and record in `bad` the columns that were found."""
    bad.columns = list(found)
    near = nearest(str(column), map(str, bad.columns))
    return f"no column {column!r}.{near} Columns found: {', '.join(map(reprlib.repr, bad.columns)) or 'none'}.{hint}"


def refuse_wide(path: str, start: bytes) -> None:
    """Raise a `ConfigurationError` if a file that begins with these bytes is in UTF-16 or UTF-32; without their mark, a third are zero."""
    mark = next((name for name, marks in _WIDE.items() if start.startswith(marks)), None)
    if mark is not None:
        raise ConfigurationError(f"{path} is {mark}, not UTF-8; convert it, as with: iconv -f {mark} -t UTF-8")
    if 3 * start.count(0) > max(len(start), 5):
        zeros = f"{start.count(0)} of its first {len(start)} bytes are zero"
        raise ConfigurationError(f"{path} is not UTF-8 text: {zeros}; convert it, as with: iconv -f ENCODING -t UTF-8")


def _decoded(path: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield each line with its number and its encoding error, or None."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
                refuse_wide(path, line)
                if b"\r" in line.rstrip(b"\r") and not line.endswith(b"\n"):  # the whole file would be one row
                    raise ConfigurationError(f"the lines of {path} end with a carriage return alone; convert it, as with: tr '\\r' '\\n'")
            try:
                yield number, line.decode().rstrip("\r\n"), None
            except UnicodeDecodeError as error:
                fault = (
                    f"not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}); "
                    f"convert the file, as with: iconv -f ENCODING -t UTF-8"
                )
                yield number, line.decode(errors="surrogateescape").rstrip("\r\n"), fault


def _csv_cells(path: str, bad: BadRows) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each row with the number of its first line."""
    row: list[tuple[int, str, str | None]] = []  # the lines of the current row

    def fed() -> Iterator[str]:
        for line in _decoded(path):
            row.append(line)
            yield f"{line[1]}\n"

    reader = csv.reader(fed(), strict=True)
    while True:
        row.clear()
        try:
            with _cells_up_to(LONGEST_CELL):
                cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if len(row) > 1 or "field limit" in str(error) or "end of data" in str(error):  # the end of the row is unknown
                raise ConfigurationError(_endless(path, error, row[0][0], [line for _, line, _ in row])) from error
            reason = _CARRIAGE_RETURN if _is_carriage_return(error) else str(error)
            bad.add(f"{path}:{row[0][0]}", f"not CSV ({reason})")
            continue
        if faults := [(number, fault) for number, _, fault in row if fault is not None]:
            bad.add(f"{path}:{faults[0][0]}", faults[0][1])
        else:
            yield row[0][0], cells


def _is_carriage_return(error: csv.Error) -> bool:
    return "new-line character" in str(error)


def _endless(path: str, error: csv.Error, first: int, lines: Sequence[str]) -> str:
    """Return the message about a row that begins in line `first` and whose end is unknown."""
    last = first + len(lines) - 1
    if _is_carriage_return(error):
        return f"{path}:{first}: not CSV: the row from this line to line {last} has {_CARRIAGE_RETURN}. {_QUOTES}"
    with _cells_up_to(sys.maxsize):
        cells = next(csv.reader(f"{line}\n" for line in lines))
    ends, is_long = "end of data" in str(error), any(len(cell) > LONGEST_CELL for cell in cells)
    if is_long and len(lines) == 1:
        return f"{path}:{first}: a cell of more than {LONGEST_CELL:,} characters, which is the limit"
    if not ends and not is_long:
        return f"{path}:{first}: not CSV: the row from this line to line {last} has text after a closing quote. {_QUOTES}"
    opened = last + 1 - cells[-1].count("\n")  # one line break per line of the cell
    where = "" if ends else f" within {LONGEST_CELL:,} characters, which is the limit"
    return f"{path}:{opened}: a quote opens in this line, and none closes it{where}. {_QUOTES}"


@contextmanager
def _cells_up_to(characters: int) -> Iterator[None]:
    """Let the csv module read cells of up to this many characters. Its limit is global to the process, so it is restored immediately."""
    with _limit:
        before = csv.field_size_limit(characters)
        try:
            yield
        finally:
            csv.field_size_limit(before)


def _table(
    path: str,
    columns: Sequence[Column],
    rows: Iterator[tuple[int, list[str]]],
    bad: BadRows,
    *,
    unnamed: Sequence[str] | None,
    hint: str,
    quotes: bool = False,
) -> Iterator[Row]:
    """Name the cells of each row by the header line if there is one, else by `unnamed`, else by position.

    Skips blank rows; but with `quotes`, a row of one column that has a cell is not blank: "" is how writers tell an empty text from no row.
    """
    width = 0  # not yet known: blank rows may come first
    rows = ((number, cells) for number, cells in rows if any(map(str.strip, cells)) or (quotes and width == len(cells) == 1))
    first = next(rows, None)
    if first is None:
        return
    number, cells = first
    width = len(cells)
    header: Sequence[Column]
    tidied = {cell.strip(" \"'").casefold() for cell in cells}
    if any(column in cells for column in columns) or tidied >= set(columns):  # a header that spells the names differently is not data
        header, model = cells, "the header"
        if duplicates := [column for column in columns if cells.count(str(column)) > 1]:
            raise ConfigurationError(f"{path}:{number}: several columns are named {duplicates[0]!r}: rename all but the one to be read")
    else:
        header, model = (unnamed or range(width))[:width], f"line {number}"
        rows = chain([first], rows)
    if missing := [column for column in columns if column not in header]:
        raise ConfigurationError(
            f"{path}:{number}: {no_column(missing[0], cells, bad, hint=' Without a header line, columns are positions from 0.')}"
        )
    for number, cells in rows:
        where = f"{path}:{number}"
        if len(cells) == width:
            yield where, dict(zip(header, cells, strict=False))
        else:
            found = f"{counted(len(cells), 'cell')}, but {model} has {width}: {', '.join(map(reprlib.repr, cells[:8]))}"
            bad.add(where, f"{found} ({hint})" if len(cells) > width else found)
