"""Metrics of generated texts, and perplexity. All reduce exactly over ranks, because their states are sums.

Text metrics take `update(hypotheses, references)`: for each source, a text and all acceptable texts.
"""

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import ClassVar, Literal

import torch
from sacrebleu import BLEU, CHRF
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.functional.text import rouge_score
from typing_extensions import override

from attnkit.registry import ConfigurationError, nearest

Tokenize = Callable[[str], Sequence[Hashable]]


class Metrics(nn.ModuleDict):
    """Metrics that move with the model but are never cast to a narrower type: a bf16 sum stops growing after a few hundred batches."""

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        @wraps(fn)  # torchmetrics checks the name
        def widest(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved.to(torch.promote_types(moved.dtype, tensor.dtype))

        super()._apply(widest, recurse)  # type: ignore[no-untyped-call]
        return self


class Quotient(Metric):
    """One sum divided by another."""

    higher_is_better = False
    full_state_update = False
    zero: ClassVar[float] = 0  # the initial numerator: the integer 0 for counts, which stay exact
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(self.zero), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """Return the quotient."""
        return self.total / self.count


class Mean(Quotient):
    """Mean over targets, updated with sums.

    (torchmetrics' `MeanMetric` drops NaN, or ignores weights if told not to; a NaN loss must show.)

    Example:
        >>> metric = Mean()
        >>> metric.update(torch.tensor(6.0), torch.tensor(3))
        >>> metric.update(torch.tensor(1.0), torch.tensor(1))
        >>> metric.compute()
        tensor(1.7500)
    """

    zero = 0.0

    def update(self, total: Tensor, count: Tensor) -> None:
        """Add the sum over a batch and its number of targets."""
        self.total += total
        self.count += count


class Rate(Mean):
    """A mean for which higher is better."""

    higher_is_better = True


class Perplexity(Mean):
    """Exponential of the mean negative log-likelihood."""

    @override
    def compute(self) -> Tensor:
        return super().compute().exp()


class TextQuotient(Quotient):
    """A quotient of two counts that are summed over texts."""

    @abstractmethod
    def counts(self, hypothesis: str, acceptable: Sequence[str]) -> tuple[int, int]:
        """Return the contribution of a text to the numerator and the denominator."""

    def update(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add the counts of a batch."""
        counts = [self.counts(*pair) for pair in zip(hypotheses, references, strict=True)]
        self.total += sum(total for total, _ in counts)
        self.count += sum(count for _, count in counts)


class SequenceErrorRate(TextQuotient):
    """The fraction of sources whose output equals none of their references, ignoring white space.

    For pronunciations, where a sequence is the pronunciation of one word, the literature calls this the word error rate (WER). It is
    not the WER of speech recognition, which is an edit distance in words (here: `token_error_rate` with a `word` tokenizer).

    Example:
        >>> metric = SequenceErrorRate()
        >>> metric.update(["T IH R", "B IY"], [["T EH R", "T IH R"], ["B AY"]])
        >>> metric.compute()
        tensor(0.5000)
    """

    @override
    def counts(self, hypothesis: str, acceptable: Sequence[str]) -> tuple[int, int]:
        return int(hypothesis.split() not in [reference.split() for reference in acceptable]), 1


class TokenErrorRate(TextQuotient):
    """Edit distance in tokens to the closest reference, divided by the length of that reference; both are summed first.

    For pronunciations, this is the phoneme error rate (PER). Among equally close references, the first one counts.

    Example:
        >>> metric = TokenErrorRate(tokenize=str.split)
        >>> metric.update(["T IH R", "B IY"], [["T EH R", "T IH R S"], ["B AY"]])
        >>> metric.compute()  # (1 + 1) / (3 + 2)
        tensor(0.4000)
    """

    def __init__(self, *, tokenize: Tokenize) -> None:
        super().__init__()
        self.tokenize = tokenize

    @override
    def counts(self, hypothesis: str, acceptable: Sequence[str]) -> tuple[int, int]:
        tokens = self.tokenize(hypothesis)
        candidates = [self.tokenize(reference) for reference in acceptable]
        if tokens in candidates:
            return 0, len(tokens)
        distance, closest = min((edit_distance(tokens, candidate), i) for i, candidate in enumerate(candidates))
        return distance, len(candidates[closest])


class SacrebleuScore(Metric):
    """A corpus score of sacrebleu, from 0 to 100; the state is the sum of sacrebleu's counts over texts.

    (torchmetrics' `CHRFScore` averages different quantities, and counts orders for which a short text has no n-grams as errors; its
    `SacreBLEUScore` smooths differently.)

    Paper: Post 2018, https://aclanthology.org/W18-6319; Popović 2015, https://aclanthology.org/W15-3049

    Args:
        key: `bleu` (`sacrebleu.BLEU()`: 13a tokens, smoothing exp) or `chrf` (`sacrebleu.CHRF()`: character n-grams to 6, no words).

    Example:
        >>> metric = SacrebleuScore("chrf")
        >>> metric.update(["일 이", "오"], [["일 이 삼"], ["육", "오"]])
        >>> metric.compute()
        tensor(67.5676)
    """

    higher_is_better = True
    full_state_update = False
    counts: Tensor
    texts: Tensor

    def __init__(self, key: Literal["bleu", "chrf"]) -> None:
        super().__init__()
        self.scorer = BLEU(force=True) if key == "bleu" else CHRF()  # force: no warning about tokenized texts
        self.add_state("counts", torch.tensor(self._counts("", [""])), dist_reduce_fx="sum")  # the counts of nothing: zeros
        self.add_state("texts", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add the counts of a batch."""
        self.texts += len(hypotheses)
        for hypothesis, acceptable in zip(hypotheses, references, strict=True):
            self.counts += torch.tensor(self._counts(hypothesis, acceptable), device=self.counts.device)

    def compute(self) -> Tensor:
        """Return the score of all texts; NaN if there are none, like the other metrics."""
        score = self.scorer._compute_score_from_stats(self.counts.tolist()).score if self.texts > 0 else math.nan
        return torch.tensor(score, device=self.counts.device)

    def _counts(self, hypothesis: str, acceptable: Sequence[str]) -> list[int]:
        """Return sacrebleu's statistics of a text, which corpus scores sum."""
        counts: list[int] = self.scorer._extract_corpus_statistics([hypothesis], [[reference] for reference in acceptable])[0]
        return counts


class Rouge(Quotient):
    """ROUGE: the F1 of shared words, word pairs or the longest common subsequence, from 0 to 100; the best reference counts.

    Computed by torchmetrics, without stemming. Words are runs of letters and digits of any script, in lower case. (Google's `rouge_score`
    knows only a to z and 0 to 9, so it scores Korean as 0; on English texts, the numbers are the same.)

    Paper: Lin 2004, https://aclanthology.org/W04-1013

    Args:
        key: `rouge1`, `rouge2` or `rougeL`.

    Example:
        >>> metric = Rouge("rouge1")
        >>> metric.update(["The cat sat", "왕"], [["the cat ran", "a dog"], ["왕이"]])
        >>> metric.compute()  # (2/3 + 0) / 2
        tensor(33.3333)
    """

    higher_is_better = True
    zero = 0.0

    def __init__(self, key: Literal["rouge1", "rouge2", "rougeL"]) -> None:
        super().__init__()
        self.key = key

    def update(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add the scores of a batch."""
        if hypotheses:
            acceptable = [list(texts) for texts in references]
            scores = rouge_score(
                list(hypotheses), acceptable, "best", rouge_keys=self.key, normalizer=str.lower, tokenizer=_LETTERS_AND_DIGITS.findall
            )
            self.total += 100 * scores[f"{self.key}_fmeasure"].to(self.total) * len(hypotheses)
            self.count += len(hypotheses)


_LETTERS_AND_DIGITS = re.compile(r"[^\W_]+")

GENERATION_METRICS: dict[str, Callable[[Tokenize], Metric]] = {
    "sequence_error_rate": lambda _: SequenceErrorRate(),
    "token_error_rate": lambda tokenize: TokenErrorRate(tokenize=tokenize),
    "bleu": lambda _: SacrebleuScore("bleu"),
    "chrf": lambda _: SacrebleuScore("chrf"),
    "rouge1": lambda _: Rouge("rouge1"),
    "rouge2": lambda _: Rouge("rouge2"),
    "rougeL": lambda _: Rouge("rougeL"),
}


def generation_metric(name: str, *, tokenize: Tokenize) -> Metric:
    """Return the metric named `name`; raise a `ConfigurationError` if there is none."""
    if name not in GENERATION_METRICS:
        hint = " For pronunciations, WER is sequence_error_rate and PER is token_error_rate." if "error_rate" in name else ""
        raise ConfigurationError(
            f"unknown metric {name!r}.{nearest(name, GENERATION_METRICS)}{hint} Names: {', '.join(GENERATION_METRICS)}."
        )
    return GENERATION_METRICS[name](tokenize)


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the smallest number of insertions, deletions and substitutions that turns `a` into `b`.

    Example:
        >>> edit_distance("kitten", "sitting")
        3
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]
