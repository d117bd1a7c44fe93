"""Questions whose answers are spans of passages."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from attnkit.corpus.base import Question, QuestionCorpus
from attnkit.corpus.reading import read_columns
from attnkit.data.base import Split, TokenizedFraming
from attnkit.data.config import TokenizedRowsConfig
from attnkit.data.words import WordBatch, WordExamples, read_words
from attnkit.registry import ConfigurationError, datasets, keywords_of, require_at_least
from attnkit.tokenizer import Tokenizer
from attnkit.wording import adjective

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, kw_only=True)
class QuestionsConfig(TokenizedRowsConfig):
    """The options of `questions`."""

    separators: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, separators=self.separators)


@datasets.register("questions")
class Questions(TokenizedFraming[WordBatch]):
    r"""Questions about passages, for the task `question_answering`: an answer is a span of words of its passage, as in SQuAD.

    A row of tokens is bos, the question, eos, the passage, eos. A span consists of whole words, separated by white space. An answer that
    begins or ends within a word is extended to the whole word, in evaluation too; the number of such answers is logged.

    Paper: Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250; Devlin et al. 2019, https://arxiv.org/abs/1810.04805 (section 4.2)

    Args:
        corpus: The path of your own table of questions.
        predict: A table with questions and passages.
        tokenizer: Spec of the tokenizer; an untrained one is trained on the training questions and passages.
        separators: Number of eos tokens between question and passage (default: that of the model in `init_from`, or 1); RoBERTa has two.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "mine.tsv")
        >>> _ = path.write_text("question\tpassage\tanswer\tstart\nwho\tthe cat sat\tthe cat\t0\n")
        >>> batch = next(iter(Questions(corpus=str(path), tokenizer="word").train_dataloader()))
        >>> batch["words"], batch["label"]
        (tensor([[0, 0, 0, 1, 2, 3, 0]]), tensor([[3, 4]]))
    """

    takes: ClassVar = QuestionCorpus
    keeps = ("tokenizer", "separators")
    separators = 1
    corpus: QuestionCorpus
    config: QuestionsConfig

    @keywords_of(QuestionsConfig)
    def __init__(self, config: QuestionsConfig) -> None:
        super().__init__(config, config.tokenizer)
        self.separators = config.separators

    @override
    def training_texts(self) -> Iterable[str]:
        return (text for row in self.rows("train") for text in (row.question, row.passage))

    @override
    def read(self, part: Split) -> Sequence[Question]:
        if part != "predict":
            return self.corpus.questions(part)
        columns = self.corpus.columns_for("question", "passage")
        rows = read_columns(self._prediction_file(), columns, bad_rows=self.corpus.bad_rows["predict"])
        return [Question(question, passage, "", 0) for question, passage in rows]

    @override
    def input_of(self, row: Question) -> str:
        return super().input_of([f"{row.question}\n{row.passage}"])

    @override
    def examples(self, part: Split) -> WordExamples:
        rows = self.rows(part)
        places = [[match.span() for match in _WORD.finditer(row.passage)] for row in rows]
        if empty := [row for row, found in zip(rows, places, strict=True) if not found]:
            raise ConfigurationError(f"the {adjective(part)} question {empty[0].question!r} has an empty passage")
        between = [Tokenizer.eos_id] * self.separators
        read = [
            read_words(self.tokenizer, [row.passage[a:b] for a, b in found], before=[*self.tokenizer.encode(row.question), *between])
            for row, found in zip(rows, places, strict=True)
        ]
        spans = [] if part == "predict" else [span_of(row, found) for row, found in zip(rows, places, strict=True)]
        whole = [extended(row, found, span) for row, found, span in zip(rows, places, spans, strict=False)]
        kept, summary = self.within_limit(part, [len(found.ids) for found in read], unit="question")
        self.note_seen(summary, rows)
        if parts := [(rows[i].answer, whole[i].answer) for i in kept if whole and rows[i].answer.split() != whole[i].answer.split()]:
            summary.note(len(parts), f"with an answer extended to whole words, first: {parts[0][0][:40]!r} to {parts[0][1][:40]!r}")
        for i in kept:
            summary.add(self.tokenizer, f"{rows[i].question} {' '.join(rows[i].passage.split())}", read[i].ids)
        self.summaries.say(summary)
        return WordExamples(
            read=[read[i] for i in kept],
            labels=None if part == "predict" else [[read[i].words.index(n) for n in spans[i]] for i in kept],
            of_words=False,
            texts=None if part == "train" else [(whole or rows)[i] for i in kept],
        )


def span_of(row: Question, places: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the numbers, from 1, of the first and last word that an answer touches.

    Example:
        >>> span_of(Question("who", "the cat sat", "cat", 4), [(0, 3), (4, 7), (8, 11)])
        (2, 2)
    """
    end = row.start + len(row.answer)
    touched = [number for number, (a, b) in enumerate(places, start=1) if a < end and b > row.start]
    return touched[0], touched[-1]


def extended(row: Question, places: Sequence[tuple[int, int]], span: tuple[int, int]) -> Question:
    """Return a question with its answer extended to the whole words of a span, which a model can give.

    Example:
        >>> extended(Question("who", "(the cat) sat", "cat", 5), [(0, 4), (5, 9), (10, 13)], (2, 2)).answer
        'cat)'
    """
    start, end = places[span[0] - 1][0], places[span[1] - 1][1]
    return Question(row.question, row.passage, row.passage[start:end], start)
