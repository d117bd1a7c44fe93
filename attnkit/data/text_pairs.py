"""Source and target texts from files, or from a hub data set."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from typing_extensions import override

from attnkit.data.bad_rows import OnBadRows
from attnkit.data.base import Pair, Seq2SeqData, references
from attnkit.data.reading import check, read_columns
from attnkit.data.splitting import check_validation, set_aside
from attnkit.registry import ConfigurationError, TokenizerSpec, datasets


@datasets.register("text_pairs")
class TextPairs(Seq2SeqData):
    """Pairs of texts from your own files: TSV, CSV, JSONL, parquet, or a hub data set.

    A location is a path whose suffix tells the format, or `hub:NAME:SPLIT` (`hub:NAME:CONFIG:SPLIT`) for the `datasets` library.
    Columns are found by name in a header line. A TSV file without one has the source in column 0 and the target in column 1.
    In evaluation, lines with the same source are one example with several references.

    Args:
        train: Where the training pairs are.
        validation: Where the validation pairs are.
        test: Where the test pairs are.
        predict: Where the sources to predict for are: a `.txt` file with one per line, or any of the above. Their order is kept.
        source_column: The name of the source column (`translation.de` reaches into objects), or its position from 0 in a file
            without a header line.
        target_column: The same for the target.
        validation_fraction: In place of `validation`, the part of the training sources to validate on, between 0 and 1.
        src_tokenizer: Spec of the source tokenizer; an untrained one is trained on the sources of the training pairs.
        tgt_tokenizer: Spec of the target tokenizer, likewise. `None`: one tokenizer for both sides, trained on both.
        batch_tokens: The budget of source and target positions in a batch over all processes, padding included.
        max_length: Training pairs are left out where either side has more tokens, special ones included (default: no limit).
        seed: Of the order of the data and of `validation_fraction`; global random states play no part.
        num_workers: Processes that prepare batches (0: the main process does).
        on_bad_rows: What is done with a row that has other cells than its header, or lacks one of the two texts: `error`, or `skip`: it is
            left out, and the summary of the split says how many are.

    Raises:
        ConfigurationError: A file is missing, empty, of an unknown format, or has a bad line (named with its number).

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "pairs.tsv")
        >>> _ = path.write_text("ab\\tA B\\nabc\\tA B C\\n")
        >>> data = TextPairs(train=str(path), tgt_tokenizer="word")
        >>> next(iter(data.train_dataloader()))["src"].shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        *,
        train: str | None = None,
        validation: str | None = None,
        test: str | None = None,
        predict: str | None = None,
        source_column: str | int = "source",
        target_column: str | int = "target",
        validation_fraction: float = 0.0,
        src_tokenizer: TokenizerSpec = "character",
        tgt_tokenizer: TokenizerSpec | None = "character",
        batch_tokens: int = 4096,
        max_length: int | None = None,
        seed: int = 0,
        num_workers: int = 0,
        on_bad_rows: OnBadRows = "error",
    ) -> None:
        super().__init__(
            src_tokenizer=src_tokenizer,
            tgt_tokenizer=tgt_tokenizer,
            batch_tokens=batch_tokens,
            max_length=max_length,
            seed=seed,
            num_workers=num_workers,
            on_bad_rows=on_bad_rows,
        )
        self._locations = {"train": train, "validation": validation, "test": test, "predict": predict}
        check_validation(validation, validation_fraction)
        self.validation_fraction = validation_fraction
        self.columns = (source_column, target_column)

    @override
    def setup(self, stage: str) -> None:
        needed = {"fit": ("train", "validation"), "validate": ("validation",)}.get(stage, (stage,))
        for location in filter(None, map(self._locations.get, needed)):  # before the first step, not after the first epoch
            check(location)

    @override
    def training_pairs(self) -> Sequence[Pair]:
        return self._split[0]

    @override
    def evaluation_set(self, part: Literal["validation", "test"]) -> Mapping[str, list[str]]:
        if part == "test" or self._locations["validation"] is not None:
            pairs = self._read(part)
            self.summaries.rows[part] = len(pairs)
            return references(pairs)
        return references(self._split[1]) if self.validation_fraction > 0 else {}

    @override
    def prediction_sources(self) -> Sequence[str]:
        rows = read_columns(self._location("predict"), self.columns[:1], bad_rows=self.summaries.bad_rows("predict"))
        return [source for (source,) in rows]

    @cached_property
    def _split(self) -> tuple[list[Pair], list[Pair]]:
        """The training pairs, and those set aside for validation: no source is in both."""
        pairs = self._read("train")
        if self.validation_fraction == 0:
            return pairs, []
        keys = [source for source, _ in pairs]
        kept, aside = set_aside(keys, self.validation_fraction, seed=self.seed, what="distinct sources")
        return [pairs[i] for i in kept], [pairs[i] for i in aside]

    def _read(self, part: str) -> list[Pair]:
        rows = read_columns(self._location(part), self.columns, bad_rows=self.summaries.bad_rows(part))
        return [(source, target) for source, target in rows]

    def _location(self, part: str) -> str:
        location = self._locations[part]
        if location is None:
            trains = " (tokenizers are trained on it too, unless they are given as the specs of trained ones)" if part == "train" else ""
            raise ConfigurationError(f"text_pairs has no {part} data: set {part} to a file or a hub data set{trains}")
        return location
