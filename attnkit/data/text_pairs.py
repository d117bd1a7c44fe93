"""Pairs of texts, as batches of source and target ids."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
from typing_extensions import override

from attnkit.corpus.base import PairCorpus, Part
from attnkit.corpus.mixture import Mixture
from attnkit.data.base import Framing, Split, spec_of
from attnkit.data.batching import Examples, Seq2SeqBatch, Sequences
from attnkit.data.cache import trained
from attnkit.data.config import RowsConfig
from attnkit.registry import TokenizerSpec, datasets, keywords_of, require_at_least, tokenizers
from attnkit.tokenizer import Tokenizer

Ids: TypeAlias = "array[int]"
"""The ids of a text, as an array because garbage collection scans lists, which took a third of the encoding time."""


@dataclass(frozen=True, kw_only=True)
class TextPairsConfig(RowsConfig):
    """The options of `text_pairs`."""

    max_validation_sources: int | None = None
    src_tokenizer: TokenizerSpec = "character"
    tgt_tokenizer: TokenizerSpec | None = "character"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, max_validation_sources=self.max_validation_sources)


@datasets.register("text_pairs")
class TextPairs(Framing[Seq2SeqBatch]):
    """Pairs of texts for the task `seq2seq`: the model learns to produce the target from the source.

    In evaluation, rows with the same source form one example with several references.

    Args:
        corpus: The pairs: a corpus such as `cmudict`, the path of your own file, or `hub:NAME`.
        max_validation_sources: Maximum number of validation sources, a fixed random sample (default: all).
        src_tokenizer: Spec of the source tokenizer; an untrained one is trained on the sources of the training pairs.
        tgt_tokenizer: Spec of the target tokenizer; an untrained one is trained on the targets. `None`: one tokenizer for both sides,
            trained on both.
        max_length: Training pairs with more tokens than this on either side, special tokens included, are omitted (default: no limit).
            Evaluation and prediction omit nothing.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "pairs.tsv")
        >>> _ = path.write_text("ab\\tA B\\nabc\\tA B C\\n")
        >>> data = TextPairs(corpus=str(path), tgt_tokenizer="word")
        >>> next(iter(data.train_dataloader()))["src"].shape
        torch.Size([2, 4])
    """

    takes: ClassVar = PairCorpus
    keeps = ("src_tokenizer", "tgt_tokenizer")
    src_tokenizer_spec, tgt_tokenizer_spec = spec_of("src_tokenizer"), spec_of("tgt_tokenizer")
    corpus: PairCorpus
    config: TextPairsConfig

    @keywords_of(TextPairsConfig)
    def __init__(self, config: TextPairsConfig) -> None:
        super().__init__(config)
        self._src_tokenizer: Tokenizer = tokenizers.build(config.src_tokenizer)
        self._tgt_tokenizer: Tokenizer | None = None if config.tgt_tokenizer is None else tokenizers.build(config.tgt_tokenizer)

    @cached_property
    def src_tokenizer(self) -> Tokenizer:
        """The trained source tokenizer."""
        sides = (0,) if self._tgt_tokenizer is not None else (0, 1)
        return trained(self._src_tokenizer, lambda: (pair[side] for pair in self.rows("train") for side in sides))

    @cached_property
    def tgt_tokenizer(self) -> Tokenizer:
        """The trained target tokenizer."""
        if self._tgt_tokenizer is None:
            return self.src_tokenizer
        return trained(self._tgt_tokenizer, lambda: (target for _, target in self.rows("train")))

    @property
    def prefixes(self) -> Mapping[str, Mapping[str, str]]:
        """For `val` and `test`, the prefixes of a `mixture`'s corpora that have the split, by the names under which they are logged."""
        corpus = self.corpus
        return {"val": corpus.prefixes_in("validation"), "test": corpus.prefixes_in("test")} if isinstance(corpus, Mixture) else {}

    def evaluation_set(self, part: Part) -> Mapping[str, list[str]]:
        """Return the references of each source of a split, the canonical one first."""
        examples = self.corpus.references(part)
        count = self.config.max_validation_sources
        if part == "test" or count is None or count >= len(examples):
            return examples
        sources = list(examples)
        chosen = np.random.default_rng(self.seed).choice(len(sources), size=count, replace=False)
        return {sources[i]: examples[sources[i]] for i in chosen}

    @override
    def read(self, part: Split) -> Sequence[Any]:
        return self.prediction_inputs("source") if part == "predict" else self.corpus.pairs(part)

    @override
    def examples(self, part: Split) -> Examples:
        rows = self.rows(part)
        if part == "predict":
            return self.sources(self.src_tokenizer, rows)
        found = {} if part == "train" else self.evaluation_set(part)
        pairs = [(source, targets[0]) for source, targets in found.items()] or rows
        src: list[Ids] = [array("i", [*self.src_tokenizer.encode(source), Tokenizer.eos_id]) for source, _ in pairs]
        tgt: list[Ids] = [array("i", self.tgt_tokenizer.between_ends(target)) for _, target in pairs]
        unit = "pair" if part == "train" else "example"
        kept, summary = self.within_limit(part, [*map(max, map(len, src), map(len, tgt))], unit=unit, rows="training pairs")
        merged = sum(source in found for source, _ in rows) - len(found)
        summary.note(merged, "merged (rows with the same source are one example with several references)")
        self.note_seen(summary, found.items())
        summary.note_references(self.tgt_tokenizer, (target for targets in found.values() for target in targets))
        for side, (tokenizer, ids) in enumerate([(self.src_tokenizer, src), (self.tgt_tokenizer, tgt)]):
            for i in kept:
                summary.add(tokenizer, pairs[i][side], ids[i])
        self.summaries.say(summary)
        written = self.tgt_tokenizer.normalized  # as models write them, so that equal texts are equal strings
        texts = [(source, [*map(written, targets)]) for source, targets in found.items()]
        return Examples(
            src=Sequences([src[i] for i in kept]), tgt=Sequences([tgt[i] for i in kept]), texts=None if part == "train" else texts
        )
