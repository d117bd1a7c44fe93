"""Files of word vectors."""

import gzip
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from attnkit.files import nearest_beside, open_gzip, read_bytes, write_text
from attnkit.parquet import read_parquet
from attnkit.registry import ConfigurationError

Vector = npt.NDArray[np.float32]
Entry = tuple[str, bytes, Vector]  # location for messages, word, vector

CHUNK = 1 << 20

LONGEST_WORD = 1 << 16  # maximum length of a word in bytes
LARGEST_WORD_LIST = 256 << 20  # maximum size of the word list of a matrix in bytes
LONGEST_NUMBER = 64  # maximum length of a number as text in bytes


def read_vectors(path: str, words: Iterable[str], *, dim: int) -> dict[str, Vector]:
    """Read the vectors of the given words. All others are skipped, so memory holds only the vocabulary.

    - `.txt`, `.vec` and any other suffix: one word and its numbers per line, separated by spaces, with (word2vec) or without (GloVe) the
      header line `COUNT DIM`.
    - `.bin`: word2vec's binary format.
    - `.npy`: a matrix with one row per word. The words are in the file of the same name with suffix `.txt` (one per line) or `.parquet`
      (one text column), or else in the only such file in the folder.

    The first two may be compressed (`.gz`). None of the words may occur twice, and their vectors [dim] must be finite.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "vectors.txt")
        >>> _ = path.write_text("the 0.5 1\\ncat -2 3\\n")
        >>> read_vectors(str(path), ["cat", "dog"], dim=2)
        {'cat': array([-2.,  3.], dtype=float32)}
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigurationError(f"there is no vector file {path!r} (looked in {file.parent.resolve()}).{nearest_beside(file)}")
    wanted = {word.encode(): word for word in words}
    found: dict[str, Vector] = {}
    locations: dict[bytes, str] = {}
    try:
        for where, key, vector in _entries(file, wanted, dim):
            if key in locations:
                raise ConfigurationError(f"{where}: duplicate word {wanted[key]!r}, first at {locations[key]}; remove one of them")
            if not np.isfinite(vector).all():
                raise ConfigurationError(f"{where}: the vector of {wanted[key]!r} is not finite")
            locations[key], found[wanted[key]] = where, vector
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ConfigurationError(f"{path} is truncated or damaged ({error}); download it again") from error
    return found


def write_vectors(path: str | Path, words: Sequence[str], vectors: npt.NDArray[np.floating[Any]]) -> int:
    """Write words and their vectors [V, D] in word2vec's text format, which `read_vectors` reads; return the number of words written.

    Words that are empty or contain white space are omitted, because the format cannot represent them.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "vectors.txt")
        >>> write_vectors(path, ["cat", "a b"], np.array([[0.5, -1.0], [1.0, 2.0]], np.float32)), path.read_text()
        (1, '1 2\\ncat 0.5 -1\\n')
    """
    rows = [(word, row) for word, row in zip(words, vectors, strict=True) if [word] == word.split()]
    lines = [f"{len(rows)} {vectors.shape[1]}", *(" ".join([word, *(f"{x:.9g}" for x in row)]) for word, row in rows)]
    write_text(path, "".join(f"{line}\n" for line in lines))
    return len(rows)


def _entries(file: Path, wanted: Container[bytes], dim: int) -> Iterator[Entry]:
    if file.suffix == ".npy":
        yield from _matrix(file, wanted, dim)
        return
    is_packed = file.suffix == ".gz"
    with open_gzip(file) if is_packed else file.open("rb") as stream:
        kind = file.with_suffix("").suffix if is_packed else file.suffix
        yield from (_binary if kind == ".bin" else _text)(stream, file, wanted, dim)


def _text(stream: BinaryIO, file: Path, wanted: Container[bytes], dim: int) -> Iterator[Entry]:
    lines = _lines(stream, file, LONGEST_WORD + LONGEST_NUMBER * dim)
    first = next(lines, b"")
    if not first.strip():
        raise ConfigurationError(f"{file} is empty")
    listed = _header(first, file, dim)
    number = 0
    for number, line in enumerate(lines, start=2) if listed is not None else enumerate(chain([first], lines), start=1):
        line = line.rstrip()
        spaces = line.count(b" ")  # more than dim if the word itself contains spaces, as in GloVe 840B
        if spaces < dim or (spaces > dim and number == 1 and _is_number(line.split(b" ")[-dim - 1])):
            raise ConfigurationError(
                f"{file}:{number}: {spaces} numbers after the word, but dim is {dim}: the line is truncated, or dim is wrong"
            )
        word = line[: line.index(b" ")] if spaces == dim else line.rsplit(b" ", dim)[0]
        if word in wanted:
            numbers = line[len(word) + 1 :].split(b" ")
            if not all(map(_is_number, numbers)):
                raise ConfigurationError(f"{file}:{number}: {b' '.join(numbers)[:40].decode(errors='replace')!r} is not a row of numbers")
            yield f"{file}:{number}", word, _vector([float(n) for n in numbers])
    if listed is not None and number - 1 != listed:
        raise ConfigurationError(f"{file} is truncated or damaged: its header says {listed} words, but {max(number - 1, 0)} lines follow")


def _lines(stream: BinaryIO, file: Path, longest: int) -> Iterator[bytes]:
    for number in count(1):
        line = stream.readline(longest + 1)
        if len(line) > longest:
            raise ConfigurationError(f"{file}:{number}: the line exceeds {longest:,} bytes, too long for a word and its numbers")
        if not line:
            return
        yield line


def _vector(numbers: Any) -> Vector:
    with np.errstate(over="ignore"):  # numbers too large for fp32 become infinite, and are refused
        return np.array(numbers, np.float32)


def _binary(stream: BinaryIO, file: Path, wanted: Container[bytes], dim: int) -> Iterator[Entry]:
    listed = _header(stream.readline(LONGEST_WORD), file, dim)
    if listed is None:
        raise ConfigurationError(f"{file}: not in word2vec's binary format, which begins with the line 'COUNT DIM'")
    size, start, buffer = 4 * dim, 0, b""
    for number in range(1, listed + 1):
        while (space := buffer.find(b" ", start)) < 0 or len(buffer) < space + 1 + size:
            if space < 0 and len(buffer) - start > LONGEST_WORD:
                raise ConfigurationError(f"{file} is damaged: word {number} has more than {LONGEST_WORD:,} bytes")
            if not (more := stream.read(CHUNK)):
                raise ConfigurationError(f"{file} is truncated: its header says {listed} words, but it ends within word {number}")
            buffer, start = buffer[start:] + more, 0
        word = buffer[start:space].lstrip(b"\n")  # some writers end an entry with a line break, some do not
        start = space + 1 + size
        if word in wanted:
            yield f"{file}, word {number}", word, np.frombuffer(buffer, "<f4", dim, space + 1).astype(np.float32)
    if (buffer[start:] + stream.read(CHUNK)).strip():
        raise ConfigurationError(f"{file} is damaged: its header says {listed} words of {dim} numbers, but more data follows them")


def _matrix(file: Path, wanted: Container[bytes], dim: int) -> Iterator[Entry]:
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy parses the header as Python code, which can raise almost anything
        raise ConfigurationError(f"{file} is truncated, damaged or not a .npy file ({error})") from error
    if rows.ndim != 2 or rows.shape[1] != dim or not np.issubdtype(rows.dtype, np.floating):
        raise ConfigurationError(f"{file} must be a matrix of floats with dim={dim} columns, but has shape {rows.shape} and {rows.dtype}")
    list_file = _word_list(file)
    words = _words(list_file)
    if len(words) != len(rows):
        raise ConfigurationError(f"{file} has {len(rows)} rows, but {list_file} has {len(words)} words")
    for i, word in enumerate(words):
        if word in wanted:
            yield f"{file}, row {i}", word, _vector(rows[i])


def _word_list(file: Path) -> Path:
    same_name = [file.with_suffix(suffix) for suffix in (".txt", ".parquet")]
    beside = [f for f in sorted(file.parent.iterdir()) if f.suffix in (".txt", ".parquet")]
    found = [f for f in same_name if f.is_file()] or beside
    if len(found) != 1:
        has = ", ".join(f.name for f in found) or "none"
        raise ConfigurationError(f"{file} needs one list of words in its folder, {same_name[0].name} or {same_name[1].name}; found {has}")
    return found[0]


def _words(file: Path) -> list[bytes]:
    if file.suffix == ".txt":
        return read_bytes(file, limit=LARGEST_WORD_LIST).removesuffix(b"\n").split(b"\n")
    words: list[bytes] = []
    for row in read_parquet(file):
        word = next(iter(row.values()), None)
        if len(row) != 1 or not isinstance(word, str):
            raise ConfigurationError(f"{file} must have a single text column, but has {', '.join(row) or 'none'}")
        words.append(word.encode())
    return words


def _header(line: bytes, file: Path, dim: int) -> int | None:
    """Return the number of words in word2vec's header, or None if `line` is not a header."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() and len(part) < 20 for part in parts):
        return None
    count, width = map(int, parts)
    if width != dim:
        raise ConfigurationError(f"{file} has vectors of {width} numbers, but dim is {dim}; set dim: {width}")
    return count


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
