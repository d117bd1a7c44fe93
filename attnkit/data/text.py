"""Running text from files, or from a hub data set."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from glob import glob
from itertools import chain
from pathlib import Path

from typing_extensions import override

from attnkit.data.bad_rows import BadRows, OnBadRows
from attnkit.data.language_model import LanguageModelData, Part
from attnkit.data.packing import Piece, pieces
from attnkit.data.reading import HUB, check, iterate_columns, read_columns
from attnkit.registry import ConfigurationError, TokenizerSpec, datasets

_CHUNK = 1 << 16  # characters that are read at once


@datasets.register("text")
class Text(LanguageModelData):
    r"""Running text for language models, from your own files or a hub data set. Files may be larger than memory.

    A location is a path, a pattern such as `books/*.txt`, a hub data set (`hub:NAME:SPLIT`), or a list of these. A `.txt` file is one
    document, or several with a separator between them. In a `.tsv`, `.csv`, `.jsonl` or `.parquet` file each row is one. Documents
    of nothing but white space are skipped. The text is tokenized once, into a cache on disk (`attnkit.data.cache`).

    Batches are windows of `context` tokens of all documents in a row, with an end after each, so that nothing is padding. `tokens`
    [B, T] are the inputs, `targets` [B, T] the tokens after them; where a document begins, the input is bos. In training the windows
    lie elsewhere in each epoch. In evaluation every token is scored exactly once, and `characters` counts what is scored.

    Args:
        train: Where the training text is.
        validation: Where the validation text is.
        test: Where the test text is.
        predict: A file with prompts to continue: `.txt` with one per line, or a table with the column. Their order is kept.
        column: The name of the text column in tables (`article.body` reaches into objects), or its position from 0.
        separator: What stands between the documents of a `.txt` file, such as `"\n\n"` for blank lines (default: the file is one
            document).
        validation_fraction: In place of `validation`, a part of the training text, between 0 and 1: its end, or what lies before
            the test text.
        test_fraction: In place of `test`, the end of the training text.
        tokenizer: Spec of the tokenizer; an untrained one is trained on the training text, or on an even sample of 50 million
            characters of it.
        context: Tokens in a window.
        stride: In evaluation, tokens between the starts of windows: less than `context` leaves each scored token more context before it
            (default: `context`, no overlap).
        batch_tokens: The budget of positions in a batch over all processes.
        document_mask: Whether batches have `documents` [B, T], so that attention stays inside a document.
        seed: Of the order of the windows; global random states play no part.
        num_workers: Processes that prepare batches (0: the main process does).
        on_bad_rows: What is done with a row of a table that has other cells than its header, or lacks the text: `error`, or `skip`: it is
            left out, and the summary of the split says how many are.

    Raises:
        ConfigurationError: A file is missing, empty, of an unknown format, or not UTF-8, or a number is out of range.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "fish.txt")
        >>> _ = path.write_text("one fish two fish red fish blue fish " * 9)
        >>> data = Text(train=str(path), test_fraction=0.1, tokenizer="word", context=5, batch_tokens=10)
        >>> next(iter(data.train_dataloader()))["tokens"].shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        *,
        train: str | list[str] | None = None,
        validation: str | list[str] | None = None,
        test: str | list[str] | None = None,
        predict: str | None = None,
        column: str | int = "text",
        separator: str | None = None,
        validation_fraction: float = 0.0,
        test_fraction: float = 0.0,
        tokenizer: TokenizerSpec = "bpe",
        context: int = 256,
        stride: int | None = None,
        batch_tokens: int = 4096,
        document_mask: bool = False,
        seed: int = 0,
        num_workers: int = 0,
        on_bad_rows: OnBadRows = "error",
    ) -> None:
        super().__init__(
            tokenizer=tokenizer,
            context=context,
            stride=stride,
            batch_tokens=batch_tokens,
            document_mask=document_mask,
            seed=seed,
            num_workers=num_workers,
            on_bad_rows=on_bad_rows,
        )
        if separator == "":
            raise ConfigurationError("separator must have characters; leave it out if each .txt file is one document")
        if validation_fraction < 0 or test_fraction < 0 or validation_fraction + test_fraction >= 1:
            raise ConfigurationError(
                f"validation_fraction and test_fraction must be at least 0 and together below 1, but are {validation_fraction} and "
                f"{test_fraction}"
            )
        for name, location, fraction in (("validation", validation, validation_fraction), ("test", test, test_fraction)):
            if location is not None and fraction > 0:
                raise ConfigurationError(f"{name} and {name}_fraction exclude each other: leave one out")
        self._locations = {"train": train, "validation": validation, "test": test}
        self._spans = {  # of the training text, as fractions
            "train": (0.0, 1 - validation_fraction - test_fraction),
            "validation": (1 - validation_fraction - test_fraction, 1 - test_fraction),
            "test": (1 - test_fraction, 1.0),
        }
        self.predict = predict
        self.column = column
        self.separator = separator

    @override
    def setup(self, stage: str) -> None:
        if stage == "predict":  # before the model is loaded
            self._require_prompts()

    @override
    def has(self, part: Part) -> bool:
        start, end = self._spans[part]
        return self._locations[part] is not None or (part != "train" and start < end)

    @override
    def pieces(self, part: Part) -> Iterator[Piece]:
        start, end = self._spans[part]
        if self._locations[part] is None and self.has(part):
            yield from self._between(start, end)
        elif part == "train" and end < 1:
            yield from self._between(0.0, end)
        else:
            yield from self._read(part)

    @override
    def prompts(self) -> Sequence[str]:
        rows = read_columns(self._require_prompts(), [self.column], bad_rows=self.summaries.bad_rows("predict"))
        return [prompt for (prompt,) in rows]

    @cached_property
    def _train_characters(self) -> int:
        return sum(len(piece.text) for piece in self._read("train"))

    def _between(self, start: float, end: float) -> Iterator[Piece]:
        """Yield the training text between two fractions of its characters."""
        first, last = round(start * self._train_characters), round(end * self._train_characters)
        position = 0
        for text, ends in self._read("train"):
            if position >= last:
                break
            if kept := text[max(0, first - position) : last - position]:
                yield Piece(kept, ends and position + len(text) <= last)
            position += len(text)

    def _read(self, part: Part) -> Iterator[Piece]:
        locations = self._locations[part]
        if locations is None:
            trains = " (the tokenizer is trained on it too, unless it is given as the spec of a trained one)" if part == "train" else ""
            raise ConfigurationError(f"text has no {part} data: set {part} to a file or a hub data set{trains}")
        empty, bad = True, self.summaries.bad_rows(part)
        for path in expand(locations):
            for piece in self._read_one(path, bad):
                yield piece
                empty = False
        if empty:
            skipped = f". The first row that was skipped: {bad.first}" if bad else ""
            raise ConfigurationError(f"the {part} text is empty: there is nothing but white space in {locations}{skipped}")

    def _read_one(self, location: str, bad: BadRows) -> Iterator[Piece]:
        if location.startswith(HUB) or Path(location).suffix != ".txt":
            documents: Iterable[Iterable[str]] = iterate_columns(location, [self.column], bad_rows=bad)
        elif self.separator is None:
            documents = [_chunks(location)]
        else:
            documents = ([document] for document in split(_chunks(location), self.separator))
        return chain.from_iterable(map(pieces, documents))

    def _require_prompts(self) -> str:
        if self.predict is None:
            raise ConfigurationError("text has no prompts to continue: set predict to a .txt file with one per line")
        check(self.predict)
        return self.predict


def expand(locations: str | Sequence[str]) -> list[str]:
    """Return the files and hub data sets that `locations` means, those of a pattern in alphabetical order.

    Raises:
        ConfigurationError: A file is missing or of an unknown format, or a pattern matches nothing.
    """
    found: list[str] = []
    for location in [locations] if isinstance(locations, str) else locations:
        if location.startswith(HUB) or Path(location).exists() or not set(location) & set("*?["):
            found.append(location)
        elif matches := sorted(glob(location, recursive=True)):
            found += matches
        else:
            raise ConfigurationError(f"no file matches {location!r} (looked from {Path.cwd()})")
    for location in found:
        check(location)
    return found


def split(chunks: Iterable[str], separator: str) -> Iterator[str]:
    r"""Split a text that comes in chunks of any size.

    Example:
        >>> list(split(["a\n", "\nb", "c"], "\n\n"))
        ['a', 'bc']
    """
    rest = ""
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(separator)
        yield from complete
    yield rest


def _chunks(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            yield from iter(lambda: file.read(_CHUNK), "")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path}: not UTF-8 (byte 0x{error.object[error.start]:02x}); convert the file, as with: iconv -f ENCODING -t UTF-8"
        ) from error
