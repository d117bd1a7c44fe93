"""Your own files, and data sets from the hub."""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar, get_args

from typing_extensions import override

from attnkit.corpus.base import (
    ImageCorpus,
    LabelCorpus,
    Labelled,
    Pair,
    PairCorpus,
    Part,
    Question,
    QuestionCorpus,
    SignalCorpus,
    TagCorpus,
    Tagged,
    references,
)
from attnkit.corpus.documents import between, read_documents
from attnkit.corpus.fingerprint import fingerprint
from attnkit.corpus.hub import HUB, ask_hub
from attnkit.corpus.image_reading import ARRAYS, Images, read_images
from attnkit.corpus.locations import READ_BY, Locations, expand, refuse_unread_options
from attnkit.corpus.media import Stored
from attnkit.corpus.reading import Fault, iterate_columns
from attnkit.corpus.signals import Signals, read_each, stored
from attnkit.corpus.splitting import set_aside
from attnkit.corpus.tables import Column, OnBadRows, unified
from attnkit.registry import ConfigurationError, corpora, fields_as_keywords, require_at_least
from attnkit.wording import adjective, counted

T = TypeVar("T")

PARTS: tuple[Part, ...] = get_args(Part)


@corpora.register("files")
@fields_as_keywords
class Files(PairCorpus, LabelCorpus, ImageCorpus, SignalCorpus, TagCorpus, QuestionCorpus):
    r"""Your own files: pairs of texts, running text, labelled texts or images, images or sounds with texts, tagged words or questions.

    `corpus: mine/train.tsv` is short for `corpus: {name: files, train: mine/train.tsv}`, and `corpus: hub:wmt16:de-en` for `corpus: {name:
    files, hub: wmt16:de-en}`.

    A line break inside a text is `\n`, even if the file has `\r\n`; the passages of questions are read unchanged, except from CSV.

    A location is a path, a pattern such as `books/*.txt`, `hub:NAME:SPLIT` or `hub:NAME:CONFIG:SPLIT` for the `datasets` library, or a
    list of these, read in order.

    - `.tsv`, `.csv`, `.jsonl`, `.parquet`: a pair, a text or a text with its label in each row. Columns are found by name in a header
      line; a TSV file without one has the source or the text in column 0, and the target or the label in column 1.
    - `.txt`: running text of any size. A file is one document, or several documents with a separator between them.
    - Images: a `.npz` file with the arrays `images` and `labels`, a list `[images.npy, labels.npy]`, or a folder with a sub-folder of
      image files for each class. Arrays are uint8, [N, H, W] or with 1 or 3 channels before or after height and width; labels are
      integers from 0.

    - Images or sounds with texts: a table with a file and a text in each row; if several rows name the same file, all their texts are
      correct. Files are images, or sounds of 16 kHz or more (16-bit `.wav`; others need `pip install 'attnkit[sounds]'`); paths are
      relative to the folder of the table. Hub data sets have a column of images or sounds instead.

    - Tagged words: a table with words and as many tags in each row, both separated by white space.
    - Questions: a table with a question, a passage, an answer that is a span of the passage, and its start (the number of characters
    before it) in each row.

    Args:
        train: Location of the training rows.
        validation: Location of the validation rows.
        test: Location of the test rows.
        hub: A data set from the Hugging Face hub (`NAME` or `NAME:CONFIG`; NAME may be a folder), read by the `datasets` library. Its
            splits `train`, `validation` and `test`, if they exist, are used where no location is given.
        columns: The names of the columns (`translation.de` reaches into objects, `answers.text.0` into lists), or their positions from 0
            in a file without a header line (default: `[source, target]`, `[text]`, `[text, label]`, `[image, label]`, `[file, text]`,
            `[words, tags]` or `[question, passage, answer, start]`, whichever the framing needs).
        separator: The text between the documents of a `.txt` file, such as `"\n\n"` for blank lines (default: the file is one
            document).
        validation_fraction: Instead of `validation`, the fraction of the training rows to set aside, between 0 and 1. Rows with the same
            source, text, passage or image stay together. Of running text, the end is set aside, or the part before the test text.
        test_fraction: Instead of `test`, the fraction of the training rows to set aside; of running text, the end.
        max_rows: Maximum number of rows to read from each table or hub location (default: all).
        streaming: Whether to stream rows from the hub, without a copy of the data set on disk.
        on_bad_rows: How to handle a row whose cells do not match the header, that lacks a text or a label, whose numbers of tags and
            words differ, whose answer is not at its place in the passage, or whose image or sound cannot be read: `error`, or `skip`, which
            omits the row and reports the number of such rows in the summary of the split.
        seed: Seed for choosing the rows to set aside.

    Raises:
        ConfigurationError: A file is missing, empty, in an unknown format, not UTF-8, or has a bad line (the message has its number), or
            a number is out of range.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "pairs.tsv")
        >>> _ = path.write_text("ab\tA B\nabc\tA B C\n")
        >>> Files(train=str(path)).pairs("train")
        [('ab', 'A B'), ('abc', 'A B C')]
    """

    rows = "pairs of texts, running text, labelled texts or images, images or sounds with texts, tagged words or questions"

    train: Locations | None = None
    validation: Locations | None = None
    test: Locations | None = None
    hub: str | None = None
    columns: list[str | int] | None = None
    separator: str | None = None
    validation_fraction: float = 0.0
    test_fraction: float = 0.0
    max_rows: int | None = None
    streaming: bool = False
    on_bad_rows: OnBadRows = "error"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        if self.separator == "":
            raise ConfigurationError("separator must not be empty; remove it if each .txt file is one document")
        require_at_least(1, max_rows=self.max_rows)
        fractions = self.validation_fraction, self.test_fraction
        if min(fractions) < 0 or sum(fractions) >= 1:
            raise ConfigurationError(
                f"validation_fraction and test_fraction must be at least 0 and together below 1, but are {fractions[0]} and {fractions[1]}"
            )
        self._locations: dict[Part, Locations | None] = {"train": self.train, "validation": self.validation, "test": self.test}
        self._fractions: dict[Part, float] = dict(zip(PARTS, (0.0, *fractions), strict=True))
        for name in PARTS:
            if self._locations[name] is not None and self._fractions[name] > 0:
                raise ConfigurationError(f"{name} and {name}_fraction are mutually exclusive: remove {name}, or set {name}_fraction to 0")
        self._refuse_unread_options()
        self._shared: dict[object, Any] = {}
        self._stored: dict[str, Stored] = {}  # images and sounds from the hub, by name

    @override
    def has(self, part: Part) -> bool:
        return self._fractions[part] > 0 or self.location(part) is not None

    @override
    def check(self, part: Part) -> None:
        locations = self.location(part)
        for location in [locations] if isinstance(locations, str) else locations or ():
            if Path(location).suffix not in ARRAYS and not Path(location).is_dir():
                expand(location)

    @override
    def columns_for(self, *names: str) -> Sequence[Column]:
        if self.columns is not None and len(self.columns) < len(names):
            raise ConfigurationError(f"columns must name the {' and the '.join(names)}, but are {self.columns}")
        return names if self.columns is None else self.columns[: len(names)]

    @override
    def pairs(self, part: Part) -> list[Pair]:
        return [(source, target) for source, target in self._rows(part, "source", "target")]

    @override
    def labelled(self, part: Part) -> list[Labelled]:
        return [(text, label) for text, label in self._rows(part, "text", "label")]

    @override
    def images(self, part: Part, *, shape: Sequence[int] | None) -> Images:
        columns = [str(column) for column in self.columns_for("image", "label")]

        def read(part: Part) -> Images:
            options: dict[str, Any] = {"max_rows": self.max_rows, "streaming": self.streaming}
            bad = self.bad_rows[part]
            return read_images(self._located(part), labelled=True, shape=shape, columns=columns, bad_rows=bad, **options)

        if not self.is_cut(part):
            return read(part)
        images = self._once("images", lambda: read("train"))
        keys = self._once("image keys", lambda: [fingerprint([image.numpy().tobytes()]) for image in images.pixels])
        chosen = images.select(self._set_aside(keys, "distinct images")[part])
        return replace(chosen, notes=images.notes) if part == "train" else chosen

    @override
    def signals(self, part: Part, *, shape: Sequence[int] | None) -> Signals:
        found = references((file, text) for file, text in self._rows(part, "file", "text"))
        files = [(self._stored.get(name) or stored(Path(name)), texts) for name, texts in found.items()]
        return read_each(files, shape=shape, bad_rows=self.bad_rows[part])

    @override
    def tagged(self, part: Part) -> list[Tagged]:
        return [(words.split(), tags.split()) for words, tags in self._rows(part, "words", "tags")]

    @override
    def questions(self, part: Part) -> list[Question]:
        rows = self._rows(part, "question", "passage", "answer", "start")
        return [Question(question, passage, answer, int(start)) for question, passage, answer, start in rows]

    @override
    def documents(self, part: Part) -> Iterator[Iterable[str]]:
        if not self.is_cut(part):
            return self._documents(part)
        validation, test = self._fractions["validation"], self._fractions["test"]
        ends = {"train": (0.0, 1 - validation - test), "validation": (1 - validation - test, 1 - test), "test": (1 - test, 1.0)}[part]
        first, last = (round(end * self._train_characters) for end in ends)
        return between(self._documents("train"), first, last)

    def location(self, part: Part) -> Locations | None:
        """Return the location of a split; None if it is set aside from the training rows, or does not exist."""
        if self._locations[part] is None and self.hub is not None and part in self._splits:
            return f"{HUB}{self.hub}:{part}"
        return self._locations[part]

    @cached_property
    def _splits(self) -> list[str]:
        try:
            names: list[str] = ask_hub("get_dataset_split_names", f"{HUB}{self.hub}", *str(self.hub).split(":", 1))
        except ConfigurationError as error:
            if isinstance(error.__cause__, ConnectionError):
                raise ConfigurationError(f"{error}. Without the network, {HUB}FOLDER reads the data set's files from a folder") from error
            raise
        return names

    def _refuse_unread_options(self) -> None:
        """Raise if an option is set but has no effect on any location."""
        if self.hub is not None and all(self._locations[part] is not None or self._fractions[part] > 0 for part in PARTS):
            raise ConfigurationError("hub has no effect, because train, validation and test have other sources: remove it or one of those")
        options = {name: getattr(self, name) for name in READ_BY}
        refuse_unread_options(options, self._locations.values(), from_hub=self.hub is not None)

    def _located(self, part: Part) -> Locations:
        location = self.location(part)
        if location is None:
            trains = " (or provide what would be learned from it, such as a tokenizer)" if part == "train" else ""
            aside = f", or data.corpus.{part}_fraction to a part of the training rows" if part != "train" else ""
            known = f" ({HUB}{self.hub} has the splits {', '.join(self._splits)})" if self.hub is not None else ""
            missing = f"there is no {adjective(part)} data{known}"
            raise ConfigurationError(f"{missing}: set data.corpus.{part} to a file or a hub data set{trains}{aside}")
        return location

    @override
    def is_cut(self, part: Part) -> bool:
        return self._fractions[part] > 0 or (part == "train" and any(self._fractions.values()))

    def _once(self, key: object, read: Callable[[], T]) -> T:
        """Return the result of `read`, which is called only once for each key."""
        if key not in self._shared:
            self._shared[key] = read()
        found: T = self._shared[key]
        return found

    def _note_aside(self, cells: Iterable[str], *seeds: int) -> None:
        self.aside = fingerprint(chain(cells, [str(self._fractions), *map(str, seeds)]))

    def _set_aside(self, keys: Sequence[str], what: str) -> dict[Part, list[int]]:
        self._note_aside(keys, self.seed)
        parts = set_aside(keys, validation=self._fractions["validation"], test=self._fractions["test"], seed=self.seed, what=what)
        return dict(zip(PARTS, parts, strict=True))

    def _rows(self, part: Part, *names: str) -> list[tuple[str, ...]]:
        if self.columns is not None and len(self.columns) > len(names):
            raise ConfigurationError(
                f"columns must name only the {' and the '.join(names)}, since no others are read, but are {self.columns}"
            )
        if not self.is_cut(part):
            return self._read(part, *names)
        rows = self._once(names, lambda: self._read("train", *names))
        key = names.index("passage") if "passage" in names else 0
        keys = [unicodedata.normalize("NFC", row[key]) for row in rows]  # tokenizers read all forms of a text alike
        return [rows[i] for i in self._set_aside(keys, f"distinct {names[key]}s")[part]]

    def _read(self, part: Part, *names: str) -> list[tuple[str, ...]]:
        """Return the rows at a split's location; labels may be numbers."""
        bad = self.bad_rows[part]
        columns = self.columns_for(*names)
        numbers = columns[1:] if "label" in names else columns[3:]
        fault, media = _FAULTS.get(names[0]), self._stored if "file" in names else None
        rows: list[tuple[str, ...]] = []
        for location in expand(self._located(part)):
            read = iterate_columns(location, columns, numbers=numbers, bad_rows=bad, streaming=self.streaming, fault=fault, stored=media)
            found: Iterator[tuple[str, ...]] = islice(read, self.max_rows)
            if "start" not in names:  # `start` counts the characters of the unchanged passage
                found = (tuple(map(unified, row)) for row in found)
            is_table = "file" in names and not location.startswith(HUB)
            rows += ((str(Path(location).parent / row[0]), *row[1:]) for row in found) if is_table else found
        if not rows:
            skipped = f". The first skipped row: {bad.first}" if bad else ""
            raise ConfigurationError(f"the {adjective(part)} data are empty: {self._located(part)} has no rows{skipped}")
        return rows

    @cached_property
    def _train_characters(self) -> int:
        count = 0

        def chunks() -> Iterator[str]:
            nonlocal count
            for chunk in chain.from_iterable(self._documents("train")):
                count += len(chunk)
                yield chunk

        self._note_aside(chunks())
        return count

    def _documents(self, part: Part) -> Iterator[Iterable[str]]:
        files = found = 0
        for location in expand(self._located(part)):
            if location.startswith(HUB) or Path(location).suffix != ".txt":
                rows = iterate_columns(location, self.columns_for("text"), bad_rows=self.bad_rows[part], streaming=self.streaming)
                yield from (map(unified, row) for row in islice(rows, self.max_rows))
                continue
            files += 1
            for document in read_documents(location, self.separator):
                found += 1
                yield document
        if self.separator is not None and part == "train" and found == files > 0:
            raise ConfigurationError(
                f"separator {self.separator!r} does not occur in {self._located(part)}: correct it, or remove it if each .txt file is one "
                f'document. A line break is "\\n", in double quotes (in a shell \'"\\n"\'), and is read as such even where it is \\r\\n'
            )


def _untagged(row: tuple[str, ...]) -> str | None:
    words, tags = (text.split() for text in row)
    if len(words) == len(tags) > 0:
        return None
    return f"{counted(len(words), 'word')} and {counted(len(tags), 'tag')}: {' '.join(words)[:40]!r}; each word needs one tag"


def _misplaced(row: tuple[str, ...]) -> str | None:
    _, passage, answer, start = row
    is_found = start.isdecimal() and len(start) < 19 and answer.strip() and passage.startswith(answer, int(start))
    return None if is_found else f"the passage does not contain {answer[:40]!r} at character {start}"


_FAULTS: dict[str, Fault] = {"words": _untagged, "question": _misplaced}
