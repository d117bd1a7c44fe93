"""Data sets of the Hugging Face hub, with their own splits."""

from functools import cached_property

from typing_extensions import override

from attnkit.corpus.bad_rows import OnBadRows
from attnkit.corpus.base import Part
from attnkit.corpus.files import Files, Locations
from attnkit.corpus.reading import ask_hub
from attnkit.registry import corpora


@corpora.register("hub")
class Hub(Files):
    """A data set of the Hugging Face hub, or a folder of data files, by the `datasets` library.

    Its splits `train`, `validation` and `test` are the parts, as far as it has them.
    `corpus: hub:wmt16:de-en` is short for `corpus: {name: hub, path: wmt16, config: de-en}`. Splits of other names, and slices such as
    `train[:10%]`, are locations of the corpus `files`: `hub:NAME:SPLIT`.

    Args:
        path: Its name, such as `stanfordnlp/imdb`, or a folder.
        config: The name of the configuration, if it has several.
        columns: The names of the columns; `translation.de` reaches into objects (default: `[source, target]`, `[text]`, `[text, label]`
            or `[image, label]`, as the framing asks for).
        validation_fraction: Part of the training rows to validate on, between 0 and 1, if there is no such split. Rows with the same
            source, or the same text, are on the same side. Of running text it is the end, or what lies before the test text.
        test_fraction: Part of the training rows to test on, likewise; of running text the end.
        max_rows: Read no more rows of each split than this (default: all).
        streaming: Whether rows are read as they come, without a copy of the data set on disk.
        on_bad_rows: What is done with a row that lacks a text or a label: `error`, or `skip`: it is left out, and the summary of the split
            says how many are.
        seed: Of the rows that are set aside.

    Raises:
        ConfigurationError: The library is not installed, or cannot load the data set; or a number is out of range.
    """

    def __init__(
        self,
        *,
        path: str,
        config: str | None = None,
        columns: list[str | int] | None = None,
        validation_fraction: float = 0.0,
        test_fraction: float = 0.0,
        max_rows: int | None = None,
        streaming: bool = False,
        on_bad_rows: OnBadRows = "error",
        seed: int = 0,
    ) -> None:
        super().__init__(
            columns=columns,
            validation_fraction=validation_fraction,
            test_fraction=test_fraction,
            max_rows=max_rows,
            streaming=streaming,
            on_bad_rows=on_bad_rows,
            seed=seed,
        )
        self.path, self.config = path, config

    @override
    def location(self, part: Part) -> Locations | None:
        return ":".join(["hub", self.path, *([self.config] if self.config else []), part]) if part in self._splits else None

    @cached_property
    def _splits(self) -> list[str]:
        names: list[str] = ask_hub("get_dataset_split_names", f"hub:{self.path}", self.path, self.config)
        return names
