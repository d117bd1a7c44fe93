"""Labelled texts, as batches of token ids."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypedDict

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.corpus.base import LabelCorpus, Labels, Part, TextCorpus, number_of
from attnkit.data.base import Split, TokenizedFraming, build_corpus, require_distinct
from attnkit.data.batching import Sequences, TokenExamples
from attnkit.data.config import TokensConfig
from attnkit.data.summary import Summary
from attnkit.registry import ConfigurationError, CorpusSpec, TokenizerSpec, datasets, keywords_of, nearest, require_at_least
from attnkit.tokenizer import Tokenizer
from attnkit.wording import adjective, counted

_ENDS = re.compile(r"(?<=[.!?])\s+")


class LabelledBatch(TypedDict, total=False):
    """A batch of texts, with labels if all texts of the split have one, and with the texts themselves except in training.

    A filler (`attnkit.data.loading.Share`) has tokens, but no label or text.
    """

    example: Tensor  # [B] int64: the index of each text; -1 for a filler
    tokens: Tensor  # [B, T] int64: bos, tokens, eos, padding
    label: Tensor  # [B]: int64 classes or float32 numbers; [0] for a filler
    text: list[str]


@dataclass(frozen=True, kw_only=True)
class LabelledTextConfig(TokensConfig):
    """The options of `labelled_text`."""

    unlabelled: Sequence[CorpusSpec] = ()
    passage_words: int | None = None
    labels: Labels = "class"
    classes: list[str] | None = None
    tokenizer: TokenizerSpec = "bpe"
    max_length: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(3, max_length=self.max_length)
        require_distinct(self.classes)
        require_at_least(1, passage_words=self.passage_words)
        if self.passage_words is not None and not self.unlabelled:
            raise ConfigurationError("passage_words has no effect without unlabelled, whose sentences it joins; remove it")


@datasets.register("labelled_text")
class LabelledText(TokenizedFraming[LabelledBatch]):
    """Texts, each with a class or a number, for the tasks `classification` and `regression`; `masked_lm` ignores the labels.

    Args:
        corpus: The texts: a corpus such as `movie_snippets`, the path of your own file, or `hub:NAME`.
        unlabelled: Additional corpora of unlabelled text to train on, for the task `masked_lm`, sentence by sentence. Sentences that
            occur as texts in the validation or test split are omitted. Tokenizers are not trained on them.
        passage_words: Join consecutive sentences of `unlabelled` into passages of up to this many words (default: each sentence is an
            example).
        labels: `class`: the label names a class; `number`: it is a number, for the task `regression`.
        classes: The names of the classes, in the order of their ids (default: those of the training texts, sorted).
        tokenizer: Spec of the tokenizer; an untrained one is trained on the training texts.
        max_length: Texts with more tokens than this, bos and eos included, are truncated in every split; their number is logged.

    Raises:
        ConfigurationError: A corpus has no labelled texts or cannot be read, a number is out of range, or a label is not a class or not a
            number.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "mine.tsv")
        >>> _ = path.write_text("so good\\tpraise\\nbad\\tblame\\n")
        >>> data = LabelledText(corpus=str(path), tokenizer="word")
        >>> data.classes
        ['blame', 'praise']
        >>> next(iter(data.train_dataloader()))["tokens"].shape
        torch.Size([2, 4])
    """

    takes: ClassVar = LabelCorpus
    corpus: LabelCorpus
    config: LabelledTextConfig

    @keywords_of(LabelledTextConfig)
    def __init__(self, config: LabelledTextConfig) -> None:
        super().__init__(config, config.tokenizer, labels=config.labels)
        self.unlabelled: list[TextCorpus] = [build_corpus(spec, TextCorpus, seed=self.seed) for spec in config.unlabelled]
        self.summaries.corpora += self.unlabelled
        self.keeps = ("tokenizer", "classes") if config.labels == "class" else ("tokenizer",)

    @override
    def setup(self, stage: str) -> None:
        super().setup(stage)
        for corpus in self.unlabelled if stage == "fit" else ():
            corpus.check("train")

    @override
    def training_texts(self) -> Iterable[str]:
        return (text for text, _ in self.rows("train"))

    @cached_property
    def classes(self) -> list[str]:
        """The name of each class, by its id."""
        if self.config.labels == "number":
            raise ConfigurationError("the labels of these data are numbers; use task regression, or set data.labels to class")
        return self.config.classes if self.config.classes is not None else sorted({label for _, label in self.rows("train")})

    def unlabelled_texts(self) -> Iterator[str]:
        """Yield sentences or passages of the unlabelled corpora, except texts in the validation and test splits of the labelled corpus."""
        parts: tuple[Part, ...] = ("validation", "test") if self.unlabelled else ()
        held_out = {text for part in parts if self.corpus.has(part) for text, _ in self.corpus.labelled(part)}
        for corpus in self.unlabelled:
            for document in corpus.documents("train"):
                kept = (sentence for sentence in sentences("".join(document)) if sentence not in held_out)
                yield from kept if self.config.passage_words is None else passages(kept, words=self.config.passage_words)

    @override
    def read(self, part: Split) -> Sequence[tuple[str, str | None]]:
        return [(text, None) for text in self.prediction_inputs("text")] if part == "predict" else self.corpus.labelled(part)

    @override
    def examples(self, part: Split) -> TokenExamples:
        examples = [*self.rows(part), *((text, None) for text in self.unlabelled_texts())] if part == "train" else self.rows(part)
        encoded = [self.tokenizer.encode(text) for text, _ in examples]
        labelled = all(label is not None for _, label in examples)
        room = self.config.max_length - 2
        summary = Summary(part, counted(len(encoded), "text"))
        summary.note(sum(len(ids) > room for ids in encoded), f"truncated (longer than max_length={self.config.max_length})")
        self.note_seen(summary, examples)
        for (text, _), ids in zip(examples, encoded, strict=True):
            summary.add(self.tokenizer, text, ids[:room])
        labels = self._label_tensor(part, [label for _, label in examples if label is not None]) if labelled else None
        if part == "train" and labels is not None and self.config.labels == "number":
            summary.check_scale(labels)
        self.summaries.say(summary)
        return TokenExamples(
            Sequences([[Tokenizer.bos_id, *ids[:room], Tokenizer.eos_id] for ids in encoded]),
            None if part == "train" else [text for text, _ in examples],
            labels=labels,
        )

    def _label_tensor(self, part: str, labels: Sequence[str]) -> Tensor:
        if self.config.labels == "number":
            numbers = torch.tensor([number_of(label) for label in labels])
            if (index := next(iter((~numbers.isfinite()).nonzero().flatten().tolist()), None)) is not None:
                raise ConfigurationError(
                    f"the {adjective(part)} texts have the label {labels[index]!r}, which is not a finite number; for classes, set "
                    "data.labels to class"
                )
            return numbers
        ids = {name: i for i, name in enumerate(self.classes)}
        if unknown := [label for label in labels if label not in ids]:
            raise ConfigurationError(
                f"the {adjective(part)} texts have the label {unknown[0]!r}, which is not a class.{nearest(unknown[0], ids)} "
                f"Classes: {', '.join(self.classes)}."
            )
        return torch.tensor([ids[label] for label in labels])


def sentences(text: str) -> list[str]:
    r"""Return the sentences of a text: one ends at a line break, or at `.`, `!` or `?` followed by white space.

    Example:
        >>> sentences("A bore. Never funny!\nIt lasts 2.5 hours")
        ['A bore.', 'Never funny!', 'It lasts 2.5 hours']
    """
    return [sentence for line in text.split("\n") for sentence in _ENDS.split(line.strip()) if sentence]


def passages(sentences: Iterable[str], *, words: int) -> Iterator[str]:
    """Join consecutive sentences into passages of at most this many words; a longer sentence is a passage by itself.

    Example:
        >>> list(passages(["A bore.", "Never funny.", "It lasts more than two hours."], words=4))
        ['A bore. Never funny.', 'It lasts more than two hours.']
    """
    passage: list[str] = []
    length = 0
    for sentence in sentences:
        count = len(sentence.split())
        if passage and length + count > words:
            yield " ".join(passage)
            passage, length = [], 0
        passage.append(sentence)
        length += count
    if passage:
        yield " ".join(passage)
