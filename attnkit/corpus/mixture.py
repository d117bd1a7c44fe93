# https://arxiv.org/abs/1910.10683
"""Several corpora of pairs combined, each marked by a prefix."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from attnkit.corpus.base import Pair, PairCorpus, Part
from attnkit.registry import ConfigurationError, CorpusSpec, corpora, require_at_least


@corpora.register("mixture")
class Mixture(PairCorpus):
    r"""Pairs from several corpora, mixed by weight, with the corpus's prefix before each source: text to text, as in T5.

    Equation:
        $$n_i = \mathrm{round}\Big(N \, w_i \, / \sum_j w_j\Big)$$

    training rows, but at least one, come from corpus i: all of its rows, as many times as they fit, and a random sample of them for the
    rest. Validation and test have all rows.

    Paper: Raffel et al. 2020, https://arxiv.org/abs/1910.10683 (sections 2.4 and 3.5.2)

    Args:
        corpora: Corpora of pairs.
        prefixes: The text before the sources of each corpus, such as `"reverse: "`. None may be a prefix of another.
        weights: The relative share of each corpus in the training rows (default: its number of rows).
        train_rows: Number of training rows N (default: the sum over the corpora).
        seed: Seed of the samples; also passed to the corpora.

    Raises:
        ConfigurationError: The numbers of corpora, prefixes and weights differ, a weight is not positive, a prefix is ambiguous, or a
            corpus does not hold pairs.

    Example:
        >>> rows = {"train_rows": 6, "validation_rows": 2, "test_rows": 2, "length": 3}
        >>> parts = [{"name": "copy", **rows}, {"name": "reverse", **rows}]
        >>> mixed = Mixture(corpora=parts, prefixes=["copy: ", "reverse: "], weights=[1, 2])
        >>> [sum(source.startswith(prefix) for source, _ in mixed.pairs("train")) for prefix in ("copy: ", "reverse: ")]
        [4, 8]
    """

    def __init__(
        self,
        *,
        corpora: Sequence[CorpusSpec] = (),
        prefixes: Sequence[str] = (),
        weights: list[float] | None = None,
        train_rows: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not len(corpora) == len(prefixes) == len(corpora if weights is None else weights) or not corpora:
            raise ConfigurationError(
                f"a mixture needs a prefix and a weight for each corpus, but has {len(corpora)} corpora, {len(prefixes)} prefixes and "
                f"{len(corpora if weights is None else weights)} weights"
            )
        if weights is not None and not all(0 < weight < float("inf") for weight in weights):
            raise ConfigurationError(f"weights must be positive, but are {weights}; remove a corpus instead of giving it no weight")
        require_at_least(1, train_rows=train_rows)
        self.prefixes, self.weights, self.train_rows, self.seed = {label(prefix): prefix for prefix in prefixes}, weights, train_rows, seed
        clash = next(((a, b) for i, a in enumerate(prefixes) for j, b in enumerate(prefixes) if i != j and b.startswith(a)), None)
        if clash or len(self.prefixes) < len(prefixes) or "" in self.prefixes:
            raise ConfigurationError(f"prefixes must differ in their words, and none may be a prefix of another, but they are {prefixes}")
        self.parts: Sequence[PairCorpus] = [_pairs(spec, seed) for spec in corpora]

    @override
    def has(self, part: Part) -> bool:
        return any(corpus.has(part) for corpus in self.parts)

    @override
    def check(self, part: Part) -> None:
        for corpus in self._with(part).values():
            corpus.check(part)

    @override
    def pairs(self, part: Part) -> Sequence[Pair]:
        rows = {prefix: corpus.pairs(part) for prefix, corpus in self._with(part).items()}
        if part == "train":
            weights = self.weights or [len(found) for found in rows.values()]
            total = self.train_rows or sum(map(len, rows.values()))
            counts = [max(1, round(total * weight / sum(weights))) for weight in weights]
            rows = {
                prefix: _drawn(found, count, np.random.default_rng([self.seed, i]))
                for i, ((prefix, found), count) in enumerate(zip(rows.items(), counts, strict=True))
            }
        self.origins[part] = ", ".join(f"{len(found):,} {prefix.strip()!r}" for prefix, found in rows.items())
        return [(prefix + source, target) for prefix, found in rows.items() for source, target in found]

    @override
    def references(self, part: Part) -> dict[str, list[str]]:
        return {
            prefix + source: targets for prefix, corpus in self._with(part).items() for source, targets in corpus.references(part).items()
        }

    def prefixes_in(self, part: Part) -> dict[str, str]:
        """Return the prefixes of the corpora that have a split, by the names under which their metrics are logged."""
        return {name: prefix for name, prefix in self.prefixes.items() if prefix in self._with(part)}

    def _with(self, part: Part) -> dict[str, PairCorpus]:
        """Return the corpora that have a split, by prefix."""
        return {
            prefix: corpus for prefix, corpus in zip(self.prefixes.values(), self.parts, strict=True) if part == "train" or corpus.has(part)
        }


def label(prefix: str) -> str:
    """Return the words of a prefix as a name for metrics.

    Example:
        >>> label("translate English to German: ")
        'translate_English_to_German'
    """
    return re.sub(r"\W+", "_", prefix).strip("_")


def _pairs(spec: CorpusSpec, seed: int) -> PairCorpus:
    name, _ = corpora.split(spec)
    if not issubclass(found := corpora.get(name), PairCorpus):
        raise ConfigurationError(f"a mixture needs corpora of {PairCorpus.rows}, but {name!r} holds {found.rows}")
    corpus: PairCorpus = corpora.build(spec, seed=seed)
    return corpus


def _drawn(rows: Sequence[Pair], count: int, rng: Any) -> list[Pair]:
    """Return all rows as many times as they fit into `count`, and a sample of them, in order, for the rest."""
    times, rest = divmod(count, len(rows))
    chosen = np.sort(rng.choice(len(rows), size=rest, replace=False))
    return [*rows] * times + [rows[i] for i in chosen]
