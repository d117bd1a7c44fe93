"""Texts and their labels from files, or from a hub data set."""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

from typing_extensions import override

from attnkit.data.bad_rows import OnBadRows
from attnkit.data.labelled import Labelled, LabelledTextData, Labels
from attnkit.data.reading import check, read_columns
from attnkit.data.splitting import check_validation, set_aside
from attnkit.registry import ConfigurationError, TokenizerSpec, datasets


@datasets.register("labelled_text")
class LabelledText(LabelledTextData):
    """Texts with a class or a number each, from your own files: TSV, CSV, JSONL, parquet, or a hub data set.

    A location is a path whose suffix tells the format, or `hub:NAME:SPLIT` (`hub:NAME:CONFIG:SPLIT`) for the `datasets` library.
    Columns are found by name in a header line. A TSV file without one has the text in column 0 and the label in column 1.

    Args:
        train: Where the training texts are.
        validation: Where the validation texts are.
        test: Where the test texts are.
        predict: Where the texts to predict labels for are: a `.txt` file with one per line, or any of the above. Their order is kept.
        text_column: The name of the column with the text (`review.text` reaches into objects), or its position from 0 in a file
            without a header line.
        label_column: The same for the label.
        validation_fraction: In place of `validation`, the part of the training texts to validate on, between 0 and 1.
        labels: `class`: the label names a class; `number`: it is a number, for the task `regression`.
        classes: The names of the classes, in the order of their ids (default: those of the training texts, sorted).
        tokenizer: Spec of the tokenizer; an untrained one is trained on the training texts.
        batch_tokens: The budget of positions in a batch over all processes, padding included.
        max_length: Longer texts are truncated to this many tokens, bos and eos included, in every part; the summary of the part says how
            many are.
        seed: Of the order of the data and of `validation_fraction`; global random states play no part.
        num_workers: Processes that prepare batches (0: the main process does).
        on_bad_rows: What is done with a row that has other cells than its header, or lacks the text or the label: `error`, or `skip`: it
            is left out, and the summary of the split says how many are.

    Raises:
        ConfigurationError: A file is missing, empty, of an unknown format, or has a bad line; or a label is no class, or no number.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "mine.tsv")
        >>> _ = path.write_text("so good\\tpraise\\nbad\\tblame\\n")
        >>> data = LabelledText(train=str(path), tokenizer="word")
        >>> data.classes
        ['blame', 'praise']
        >>> next(iter(data.train_dataloader()))["tokens"].shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        *,
        train: str | None = None,
        validation: str | None = None,
        test: str | None = None,
        predict: str | None = None,
        text_column: str | int = "text",
        label_column: str | int = "label",
        validation_fraction: float = 0.0,
        labels: Labels = "class",
        classes: list[str] | None = None,
        tokenizer: TokenizerSpec = "bpe",
        batch_tokens: int = 4096,
        max_length: int = 256,
        seed: int = 0,
        num_workers: int = 0,
        on_bad_rows: OnBadRows = "error",
    ) -> None:
        super().__init__(
            labels=labels,
            classes=classes,
            tokenizer=tokenizer,
            batch_tokens=batch_tokens,
            max_length=max_length,
            seed=seed,
            num_workers=num_workers,
            on_bad_rows=on_bad_rows,
        )
        self._locations = {"train": train, "validation": validation, "test": test, "predict": predict}
        check_validation(validation, validation_fraction)
        self.validation_fraction = validation_fraction
        self.columns = (text_column, label_column)

    @override
    def setup(self, stage: str) -> None:
        needed = {"fit": ("train", "validation"), "validate": ("validation",)}.get(stage, (stage,))
        for location in filter(None, map(self._locations.get, needed)):  # before the first step, not after the first epoch
            check(location)

    @override
    def labelled(self, part: Literal["train", "validation", "test"]) -> Sequence[Labelled]:
        if part == "train":
            return self._split[0]
        if part == "test" or self._locations["validation"] is not None:
            return self._read(part)
        return self._split[1] if self.validation_fraction > 0 else []

    @override
    def prediction_texts(self) -> Sequence[str]:
        rows = read_columns(self._location("predict"), self.columns[:1], bad_rows=self.summaries.bad_rows("predict"))
        return [text for (text,) in rows]

    @cached_property
    def _split(self) -> tuple[list[Labelled], list[Labelled]]:
        """The training texts, and those set aside for validation: no text is in both."""
        examples = self._read("train")
        if self.validation_fraction == 0:
            return examples, []
        keys = [text for text, _ in examples]
        kept, aside = set_aside(keys, self.validation_fraction, seed=self.seed, what="distinct texts")
        return [examples[i] for i in kept], [examples[i] for i in aside]

    def _read(self, part: str) -> list[Labelled]:
        rows = read_columns(self._location(part), self.columns, numbers=self.columns[1:], bad_rows=self.summaries.bad_rows(part))
        return [(text, label) for text, label in rows]

    def _location(self, part: str) -> str:
        location = self._locations[part]
        if location is None:
            trains = " (the tokenizer and the classes come from it too, unless both are given)" if part == "train" else ""
            raise ConfigurationError(f"labelled_text has no {part} data: set {part} to a file or a hub data set{trains}")
        return location
