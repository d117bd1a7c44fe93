"""Fill-mask prediction: candidates for each mask, and the most probable joint fillings of all masks in a text."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import nlargest
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor
from typing_extensions import Unpack, override

from attnkit.decoding import Options
from attnkit.models.base import generating
from attnkit.registry import ConfigurationError, require_at_least
from attnkit.task.composed import ComposedTask
from attnkit.task.generating import Hypothesis
from attnkit.task.texts import T, in_batches, one_line
from attnkit.tokenizer import Tokenizer
from attnkit.tokenizer.base import MASK


class Candidate(NamedTuple):
    """A token that a mask may hide, and its probability."""

    token: str
    probability: float


class Filled(NamedTuple):
    """A text, the text with its masks filled, and the probability of the filling. As a string: the latter two, separated by a tab.

    The probability is a product over the masks: the model predicts each hidden token without knowing the others.
    """

    text: str
    filled: str
    probability: float

    def __str__(self) -> str:
        return f"{one_line(self.filled)}\t{self.probability:.4f}"


class MaskFiller(ComposedTask):
    """A task whose model predicts the tokens that masks hide, with `fill`, `generate` and `n_best` for texts.

    A subclass sets `tokenizer`, `mask_id` and `first_id` (the lowest id that a mask can hide), and its `forward` takes tokens [B, T] and
    a mask [B, T] of the places whose logits it returns.
    """

    tokenizer: Tokenizer
    mask_id: int
    first_id: int

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[Filled]:
        if not batch["text"]:  # this process has none of the batch's texts
            return []
        rows = _or_given(batch["text"], self._filled(batch["tokens"], n=1))
        return [Filled(text, filled, math.exp(score)) for text, ((filled, score),) in zip(batch["text"], rows, strict=True)]

    def fill(self, texts: Sequence[str], *, top: int = 5) -> list[list[list[Candidate]]]:
        """Return the most probable tokens for each `<mask>` in each text, best first.

        Tokens are shown as the tokenizer decodes them (for `bpe`, with the preceding space). Special and extra tokens are not candidates;
        the probabilities of all other tokens sum to 1.

        Args:
            texts: Texts that contain `<mask>`; a text without it has no candidates.
            top: Number of candidates for each mask (fewer if the vocabulary has fewer tokens).

        Raises:
            ConfigurationError: `top` is below 1.
            TypeError: `texts` is a single string.
        """
        require_at_least(1, top=top)
        rows = self._in_batches(texts, partial(self._candidates, top=top))
        return [[[Candidate(self.tokenizer.tokens([i])[0], math.exp(p)) for i, p in mask] for mask in row] for row in rows]

    def generate(self, texts: Sequence[str], **options: Unpack[Options]) -> list[str]:
        """Return each text with its masks filled by the most probable tokens; a text without masks is unchanged.

        Args:
            texts: Texts that contain `<mask>`.
            **options: None apply: they are for tasks that generate token by token.

        Raises:
            ConfigurationError: An option is given.
            TypeError: `texts` is a single string.
        """
        return [hypothesis.text for (hypothesis,) in self.n_best(texts, 1, **options)]

    def n_best(self, texts: Sequence[str], n: int, **options: Unpack[Options]) -> list[list[Hypothesis]]:
        """Return the `n` most probable ways to fill the masks of each text, best first, with their log-probabilities.

        Args:
            texts: Texts that contain `<mask>`.
            n: Number of fillings for each text; fewer are returned only if no more exist.
            **options: None apply, as in `generate`.

        Raises:
            ConfigurationError: An option is given, or `n` is below 1.
            TypeError: `texts` is a single string.
        """
        if options:
            raise ConfigurationError(
                f"{self.registered_name} fills all masks at once, so it does not take {', '.join(options)}: remove the option"
            )
        require_at_least(1, n_best=n)
        return _or_given(texts, self._in_batches(texts, partial(self._filled, n=n)))

    def stream(self, text: str, **options: Unpack[Options]) -> Iterator[str]:
        """Raise a `ConfigurationError`: the whole output is known at once."""
        raise ConfigurationError(f"{self.registered_name} fills all masks at once, so there is nothing to stream: remove --stream")

    def _in_batches(self, texts: Sequence[str], answer: Callable[[Tensor], list[T]]) -> list[T]:
        self.configure_model()
        return in_batches(self, self.tokenizer, texts, self.tokenizer.between_ends, lambda _, tokens: answer(tokens), sort=False)

    def _filled(self, tokens: Tensor, *, n: int) -> list[list[Hypothesis]]:
        """Return the `n` most probable fillings of each row of `tokens` [B, T], with their log-probabilities."""
        rows = zip(tokens.tolist(), self._candidates(tokens, top=n), strict=True)
        fillings = [best_fillings(row, masks, n=n, mask_id=self.mask_id) for row, masks in rows]
        return [[Hypothesis(self.tokenizer.decode(ids), score) for ids, score in best] for best in fillings]

    def _candidates(self, tokens: Tensor, *, top: int) -> list[list[list[tuple[int, float]]]]:
        """Return the best ids and their log-probabilities for each mask in each row of `tokens` [B, T]."""
        masks = tokens == self.mask_id
        with generating(self.model):
            logits = self(tokens, masks)[:, self.first_id :].float()  # [N, V - first_id]
        best = logits.log_softmax(-1).topk(min(top, logits.shape[-1]))
        ids = (best.indices + self.first_id).tolist()
        pairs = iter([list(zip(*row, strict=True)) for row in zip(ids, best.values.tolist(), strict=True)])
        return [list(islice(pairs, count)) for count in masks.sum(1).tolist()]


def _or_given(texts: Sequence[str], rows: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
    """Return the fillings of texts; a text without masks is returned unchanged, because tokenization may lose information."""
    return [row if MASK in text else [Hypothesis(text, 0.0)] for text, row in zip(texts, rows, strict=True)]


def best_fillings(
    row: Sequence[int], masks: Sequence[Sequence[tuple[int, float]]], *, n: int, mask_id: int
) -> list[tuple[list[int], float]]:
    """Return the `n` most probable fillings of the masks of a text, best first, with their log-probabilities; fewer only if no more exist.

    For each mask in the row of ids, `masks` has the `n` best ids (or all) and their log-probabilities, best first.

    Example:
        >>> best_fillings([1, 4, 7, 4, 2], [[(8, -1.0), (6, -2.0)], [(9, -0.5), (5, -3.0)]], n=2, mask_id=4)
        [([1, 8, 7, 9, 2], -1.5), ([1, 6, 7, 9, 2], -2.5)]
    """
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for candidates in masks:  # the best fillings consist of each mask's best candidates
        best = nlargest(n, [(so_far + score, [*ids, i]) for so_far, ids in best for i, score in candidates])
    fillings = [(iter(ids), score) for score, ids in best]
    return [([next(rest) if i == mask_id else i for i in row], score) for rest, score in fillings]
