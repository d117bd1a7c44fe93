"""A one-line summary of the data of each split."""

import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from attnkit.corpus.base import Corpus
from attnkit.tokenizer import Tokenizer
from attnkit.tokenizer.unknown import UnknownTokens, listed
from attnkit.wording import counted

UNKNOWN_BOUND = 0.01  # fraction of the tokens of a split that may be unknown without a warning


class LabelScale(UserWarning):
    """The labels for regression are far from 0, or their spread is far from 1, so training may not reach them."""


class Summary:
    """The summary of a split (`train`, `validation`, `test` or `predict`); `used` describes the data used.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build("character").train(["abc"])
        >>> summary = Summary("test", "3 pairs")
        >>> for text in ("abc", "cab", "abd"):
        ...     summary.add(tokenizer, text, tokenizer.encode(text))
        >>> summary.note(2, "omitted (longer than max_length=64)")
        >>> summary.line
        "test: 3 pairs; 2 omitted (longer than max_length=64), 11 % unknown tokens: 'd' (U+0064)"
    """

    def __init__(self, split: str, used: str) -> None:
        self.split, self.used = split, used
        self.tokens = self.unknown = 0
        self.unknown_note = ""
        self.scale_warning: str | None = None  # about numeric labels
        self._notes: list[str] = []
        self._symbols: Counter[str] = Counter()

    @classmethod
    def of_texts(cls, split: str, tokenizer: Tokenizer, texts: Sequence[str]) -> Self:
        """Return the summary of texts that are used unchanged."""
        summary = cls(split, counted(len(texts), "text"))
        for text in texts:
            summary.add(tokenizer, text, tokenizer.encode(text))
        return summary

    def note(self, count: int, what: str) -> None:
        """Note that `count` examples are `what`, if there are any."""
        if count:
            self._notes.append(f"{count:,} {what}")

    def add(self, tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> None:
        """Count the tokens of a text, of which `ids` are used."""
        self.tokens += len(ids) - ids.count(Tokenizer.bos_id) - ids.count(Tokenizer.eos_id)
        if unknown := ids.count(Tokenizer.unk_id):
            self.unknown += unknown
            self._symbols.update(tokenizer.unknown(text)[:unknown])

    def note_references(self, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
        """Note how many evaluation targets no output can equal (as with `lowercase`), not counting those with unknown tokens.

        Example:
            >>> import attnkit
            >>> tokenizer = attnkit.tokenizers.build({"name": "word", "lowercase": True}).train(["to be"])
            >>> summary = Summary("test", "2 examples")
            >>> summary.note_references(tokenizer, ["to be", "To be"])
            >>> summary.line
            "test: 2 examples; 1 target that no output can equal, as the tokenizer writes 'to be' for 'To be'"
        """
        pairs = [(text, ids) for text in texts if Tokenizer.unk_id not in (ids := tokenizer.encode(text))]
        found = [(text, written) for text, ids in pairs if (written := tokenizer.decode(ids)).split() != tokenizer.normalized(text).split()]
        if found:
            text, written = (reprlib.repr(one) for one in found[0])
            self._notes.append(f"{counted(len(found), 'target')} that no output can equal, as the tokenizer writes {written} for {text}")

    def check_scale(self, numbers: Tensor) -> None:
        """Set `scale_warning` if the mean of these labels is more than 3 (and 3 standard deviations) from 0, or their spread far from 1.

        Example:
            >>> import torch
            >>> summary = Summary("train", "2 texts")
            >>> summary.check_scale(torch.tensor([-1.0, 2.0]))
            >>> summary.scale_warning is None
            True
        """
        mean, std = float(numbers.double().mean()), float(numbers.double().std(correction=0))
        if abs(mean) <= 3 * max(std, 1) and (std == 0 or 0.01 <= std <= 10):
            return
        divided = f", and divide by {std:.6g}" if std > 0 else ""
        self.scale_warning = (
            f"{self.split}: the labels have mean {mean:.6g} and standard deviation {std:.6g}, but a new model predicts numbers near 0, and "
            f"training quickly reaches only numbers from about -3 to 3. Subtract {mean:.6g} from each label{divided}, in the data of every "
            f"split; predictions then have this scale too"
        )

    @property
    def line(self) -> str:
        """The summary line."""
        unknown = f"{_percent(self.unknown, self.tokens)} unknown tokens{self._which()}" if self.unknown else "no unknown tokens"
        notes = [*self._notes, unknown] if self.tokens else self._notes
        return f"{self.split}: {'; '.join(filter(None, [self.used, ', '.join(notes)]))}{self.unknown_note if self.unknown else ''}"

    @property
    def warning(self) -> str | None:
        """A warning if too many tokens are unknown, else None."""
        if self.unknown <= UNKNOWN_BOUND * self.tokens:
            return None
        return (
            f"{self.split}: {_percent(self.unknown, self.tokens)} of the tokens are unknown to the tokenizer{self._which()}. The model "
            f"sees <unk> in their place. Check the language, script and Unicode normalisation of the texts; bpe has no unknown tokens"
        )

    def _which(self) -> str:
        return f": {listed(self._symbols.elements())}" if self._symbols else ""


class Summaries:
    """The summaries of a data module's splits, each logged only once, however often loaders are created."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpora = [corpus]  # corpora whose rows are used; a framing may add some
        self._said: dict[str, str] = {}

    def say(self, summary: Summary) -> None:
        """Log the summary of a split in the first process, unless the same one was logged before."""
        line = summary.line
        for corpus in (part for each in self.corpora for part in each.with_parts()):
            if origin := corpus.origins.get(summary.split):
                line += f"; from {origin}"
            if bad := corpus.bad_rows[summary.split]:
                line += f"; {counted(len(bad), 'bad row')} skipped, first: {bad.first}"
        if self._said.get(summary.split) == line:
            return
        self._said[summary.split] = line
        rank_zero_info(line)
        if summary.warning is not None:
            rank_zero_warn(summary.warning, category=UnknownTokens)
        if summary.scale_warning is not None:
            rank_zero_warn(summary.scale_warning, category=LabelScale)


def _percent(part: int, whole: int) -> str:
    """Return a part of a whole as a percentage.

    Example:
        >>> _percent(1, 3), _percent(2, 10_000), _percent(1, 10**9)
        ('33 %', '0.02 %', 'less than 0.001 %')
    """
    percent = 100 * part / whole
    if percent < 0.001:
        return "less than 0.001 %"
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
