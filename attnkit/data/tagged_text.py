"""Sentences with a tag for each word."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from typing_extensions import override

from attnkit.corpus.base import TagCorpus, Tagged
from attnkit.data.base import Split, TokenizedFraming, require_distinct
from attnkit.data.config import TokenizedRowsConfig
from attnkit.data.words import WordBatch, WordExamples, read_words
from attnkit.registry import ConfigurationError, datasets, keywords_of, nearest
from attnkit.wording import adjective


@dataclass(frozen=True, kw_only=True)
class TaggedTextConfig(TokenizedRowsConfig):
    """The options of `tagged_text`."""

    classes: list[str] | None = None


@datasets.register("tagged_text")
class TaggedText(TokenizedFraming[WordBatch]):
    r"""Sentences with a tag for each word, for the task `tagging`. The first token of a word carries its tag.

    Args:
        corpus: The path of your own table of words and tags.
        predict: A file with sentences to tag: `.txt` with one per line, or a table with the column of words. Words are separated by
            white space.
        classes: The names of the tags, in the order of their ids (default: those of the training words, sorted).

    Raises:
        ConfigurationError: The corpus has no tagged words or cannot be read, a number is out of range, or a tag was not in training.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "mine.tsv")
        >>> _ = path.write_text("words\ttags\nthe cat sat\tD N V\na cat\tD N\n")
        >>> data = TaggedText(corpus=str(path), tokenizer="word")
        >>> data.classes, next(iter(data.train_dataloader()))["label"].shape
        (['D', 'N', 'V'], torch.Size([2, 5]))
    """

    takes: ClassVar = TagCorpus
    keeps = ("tokenizer", "classes")
    corpus: TagCorpus
    config: TaggedTextConfig

    @keywords_of(TaggedTextConfig)
    def __init__(self, config: TaggedTextConfig) -> None:
        super().__init__(config, config.tokenizer)
        require_distinct(config.classes)

    @override
    def training_texts(self) -> Iterable[str]:
        return (" ".join(words) for words, _ in self.rows("train"))

    @cached_property
    def classes(self) -> list[str]:
        """The name of each tag, by its id."""
        return self.config.classes if self.config.classes is not None else sorted({tag for _, tags in self.rows("train") for tag in tags})

    @override
    def read(self, part: Split) -> Sequence[Tagged]:
        return [(text.split(), ()) for text in self.prediction_inputs("words")] if part == "predict" else self.corpus.tagged(part)

    @override
    def input_of(self, row: Tagged) -> str:
        return super().input_of([" ".join(row[0])])

    @override
    def examples(self, part: Split) -> WordExamples:
        rows = self.rows(part)
        ids = {name: i for i, name in enumerate(self.classes)}
        if unknown := [tag for _, tags in rows for tag in tags if tag not in ids]:
            raise ConfigurationError(
                f"the {adjective(part)} words have the tag {unknown[0]!r}, which is not a training tag.{nearest(unknown[0], ids)} "
                f"Tags: {', '.join(self.classes)}."
            )
        read = [read_words(self.tokenizer, words) for words, _ in rows]
        kept, summary = self.within_limit(part, [len(found.ids) for found in read], unit="sentence")
        self.note_seen(summary, rows)
        for i in kept:
            summary.add(self.tokenizer, " ".join(rows[i][0]), read[i].ids)
        self.summaries.say(summary)
        return WordExamples(
            read=[read[i] for i in kept],
            labels=None if part == "predict" else [[ids[tag] for tag in rows[i][1]] for i in kept],
            of_words=True,
            texts=None if part == "train" else [" ".join(rows[i][0]) for i in kept],
        )
