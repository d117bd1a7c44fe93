# https://arxiv.org/abs/1606.05250
"""Question answering: finding the span of a passage that answers a question."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.models import ClassifierModel
from attnkit.registry import keywords_of, require_at_least, tasks
from attnkit.task.generating import input_mask
from attnkit.task.labelling import LabellingConfig, LabellingTask, shortened
from attnkit.task.loss import Sums, cross_entropy
from attnkit.task.metrics import Rate
from attnkit.task.texts import marked, one_line
from attnkit.tokenizer import Tokenizer


class Span(NamedTuple):
    """A question and the answer found. As a string: both, separated by a tab."""

    question: str
    answer: str

    def __str__(self) -> str:
        return f"{one_line(self.question)}\t{one_line(self.answer)}"


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringConfig(LabellingConfig):
    """The options of `question_answering`.

    Args:
        separators: Number of eos tokens between a question and its passage (default: the data module's, or 1).
        max_words: Maximum number of words in an answer. A warning is issued if a true answer has more, and so cannot be found.
        metrics: `exact_match`, the fraction of answers with exactly the true words, and `f1`, the mean F1 between the words of the answer
            and of the true one; both ignore case but not punctuation. The first one selects the best checkpoint.
    """

    separators: int | None = None
    max_words: int = 30
    metrics: Sequence[str] = ("exact_match", "f1")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, max_words=self.max_words)


@tasks.register("question_answering")
class QuestionAnswering(LabellingTask):
    r"""Finds the span of a passage that answers a question.

    Equation:
        $$p(i) = \mathrm{softmax}_i(s_i), \quad q(j) = \mathrm{softmax}_j(e_j), \quad (i, j) =
        \operatorname{argmax}_{i \le j < i + n} s_i + e_j$$

    over the first tokens of the words of the passage, where $s$ and $e$ are the scores as first and last word of the answer, and answers
    have at most $n$ words.

    Paper: Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250; Devlin et al. 2019, https://arxiv.org/abs/1810.04805 (section 4.2)

    An embedding with segments distinguishes question and passage, as in BERT: tokens before the passage have segment 0, the others 1.

    A batch is a mapping of `tokens` [B, T] (bos, question, eos, passage, eos, padding), `words` [B, T], the number of the word of the
    passage that begins at a token (from 1; 0 elsewhere), `label` [B, 2], the first tokens of the first and the last word of the answer
    (-1: not scored), and for evaluation and prediction `text`, the questions with their passages and answers.

    Logged: `train/loss`; in validation (`val/...`) and test (`test/...`) `loss` and the chosen `metrics`. Loss is the negative
    log-likelihood in nats, averaged over the two ends of the span. Metrics are from 0 to 1.

    Example:
        >>> import torch
        >>> import attnkit
        >>> from attnkit.corpus.base import Question
        >>> task = QuestionAnswering(
        ...     stack={"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2},
        ...     tokenizer=attnkit.tokenizers.build("word").train(["who the cat"]).spec)
        >>> task.configure_model()
        >>> batch = {"tokens": torch.tensor([[1, 6, 2, 5, 4, 2]]), "words": torch.tensor([[0, 0, 0, 1, 2, 0]]),
        ...     "text": [Question("who", "the cat", "cat", 4)]}
        >>> task.predict_step(batch, 0)[0].answer in ("the", "cat", "the cat")
        True
    """

    from_data: ClassVar = {"tokenizer": "tokenizer_spec", "separators": "separators"}
    metric_kinds: ClassVar = dict.fromkeys(("exact_match", "f1"), lambda _: Rate())
    num_segments: ClassVar = 2
    config: QuestionAnsweringConfig

    @keywords_of(QuestionAnsweringConfig)
    def __init__(self, config: QuestionAnsweringConfig) -> None:
        super().__init__(config)
        self._is_warned = False

    @property
    def separators(self) -> int:
        """The number of eos tokens between a question and its passage."""
        return self.config.separators or 1

    @property
    @override
    def outputs(self) -> int:
        return 2

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores [B, T, 2] of tokens [B, T] (bos, question, eos, passage, eos, padding)."""
        has_segments = cast(ClassifierModel, self.model).embedding.num_segments > 1
        outputs: Tensor = self.model(inputs, input_mask(inputs), passage_segments(inputs, self.separators) if has_segments else None)
        return outputs

    @override
    def sums(self, outputs: Tensor, batch: Mapping[str, Any]) -> Sums:
        scores = outputs.masked_fill((batch["words"] == 0)[..., None], -torch.inf).transpose(1, 2)  # [B, 2, T]
        given = batch["label"] >= 0
        return cross_entropy(scores[given], batch["label"][given], pad_id=None)

    @override
    def updates(self, outputs: Tensor, batch: Mapping[str, Any]) -> Mapping[str, Sequence[Any] | None]:
        pairs = list(zip((found.answer for found in self.answers(outputs, batch)), self.truths(batch), strict=True))
        most = self.config.max_words
        if not self._is_warned and (long := next((truth for _, truth in pairs if len(truth.split()) > most), None)):
            self._is_warned = True
            warnings.warn(f"answers longer than max_words={most} words cannot be found, such as {shortened(long)!r}", stacklevel=2)
        totals = {
            "exact_match": sum(answer.lower().split() == truth.lower().split() for answer, truth in pairs),
            "f1": sum(word_f1(answer, truth) for answer, truth in pairs),
        }
        count = torch.tensor(len(pairs), device=outputs.device)
        return {name: (torch.tensor(float(totals[name]), device=outputs.device), count) for name in self.config.metrics}

    @override
    def answers(self, outputs: Tensor, batch: Mapping[str, Any]) -> list[Span]:
        found = []
        for row, scores, words in zip(batch["text"], outputs, batch["words"], strict=False):
            start, end = scores[words > 0].unbind(-1)  # [N]
            pairs = start[:, None] + end  # [N, N]
            allowed = torch.ones_like(pairs).triu().tril(self.config.max_words - 1).bool()
            first, last = divmod(int(pairs.masked_fill(~allowed, -torch.inf).argmax()), len(start))
            found.append(Span(row.question, " ".join(row.passage.split()[first : last + 1])))
        return found

    @override
    def truths(self, batch: Mapping[str, Any]) -> list[str]:
        return [row.answer for row in batch["text"]]

    @override
    def sample_line(self, prediction: Any, truth: Any) -> str:
        right = prediction.answer.lower().split() == truth.lower().split()
        return marked(f"{shortened(prediction.question)} -> {prediction.answer}", right=right, truth=truth)


def passage_segments(tokens: Tensor, separators: int = 1) -> Tensor:
    """Return the segment of each token [B, T]: 0 up to and including the last eos before the passage, 1 after it.

    Example:
        >>> passage_segments(torch.tensor([[1, 6, 2, 5, 4, 2, 0]]))
        tensor([[0, 0, 0, 1, 1, 1, 1]])
    """
    ends = (tokens == Tokenizer.eos_id).long()
    return (ends.cumsum(1) - ends >= separators).long()


def word_f1(answer: str, truth: str) -> float:
    """Return the F1 of the words of an answer, ignoring case.

    Example:
        >>> word_f1("The cat", "the black cat")
        0.8
    """
    found, true = answer.lower().split(), truth.lower().split()
    shared = sum((Counter(found) & Counter(true)).values())
    return 2 * shared / (len(found) + len(true))
