"""What every data module of source and target texts does: tokenizers, and batches by token budget."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader
from typing_extensions import override

from attnkit.data.bad_rows import OnBadRows
from attnkit.data.batching import Examples, Seq2SeqBatch, Sequences, batch_loader
from attnkit.data.cache import trained
from attnkit.data.summary import Summaries, Summary, counted
from attnkit.registry import ConfigurationError, TokenizerSpec, tokenizers
from attnkit.tokenizer import Tokenizer

Pair = tuple[str, str]  # source, target


def references(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """Return the distinct targets of each distinct source, both in order of appearance.

    Example:
        >>> references([("tear", "T IH R"), ("a", "AH"), ("tear", "T EH R"), ("a", "AH")])
        {'tear': ['T IH R', 'T EH R'], 'a': ['AH']}
    """
    targets: dict[str, dict[str, None]] = {}
    for source, target in pairs:
        targets.setdefault(source, {})[target] = None
    return {source: list(distinct) for source, distinct in targets.items()}


class Seq2SeqData(LightningDataModule, ABC):
    """Pairs of texts, as batches of token ids. A subclass says where they come from.

    Args:
        src_tokenizer: Spec of the source tokenizer; an untrained one is trained on the sources of the training pairs.
        tgt_tokenizer: Spec of the target tokenizer, likewise. `None`: one tokenizer for both sides, trained on both.
        batch_tokens: The budget of source and target positions in a batch over all processes, padding included.
        max_length: Training pairs are left out where either side has more tokens, special ones included (default: no limit).
            Evaluation and prediction leave nothing out.
        seed: Of the order of the data, at least 0.
        num_workers: Processes that prepare batches (0: the main process does).
        on_bad_rows: What a subclass does with rows of files that cannot be used: `error` or `skip` (default: errors, without a choice).

    Attributes:
        summaries: What has been said of each split, and its bad rows.

    Raises:
        ConfigurationError: A number is out of range.
    """

    def __init__(
        self,
        *,
        src_tokenizer: TokenizerSpec,
        tgt_tokenizer: TokenizerSpec | None,
        batch_tokens: int,
        max_length: int | None,
        seed: int,
        num_workers: int,
        on_bad_rows: OnBadRows | None = None,
    ) -> None:
        super().__init__()
        for name, value, least in (("batch_tokens", batch_tokens, 1), ("seed", seed, 0), ("num_workers", num_workers, 0)):
            if value < least:
                raise ConfigurationError(f"{name} must be at least {least}, but is {value}")
        self.batch_tokens = batch_tokens
        self.max_length = max_length
        self.seed = seed
        self.num_workers = num_workers
        self.summaries = Summaries(on_bad_rows)
        self._src_tokenizer: Tokenizer = tokenizers.build(src_tokenizer)
        self._tgt_tokenizer: Tokenizer | None = None if tgt_tokenizer is None else tokenizers.build(tgt_tokenizer)

    @abstractmethod
    def training_pairs(self) -> Sequence[Pair]:
        """Return the source and target texts to train on."""

    @abstractmethod
    def evaluation_set(self, part: Literal["validation", "test"]) -> Mapping[str, list[str]]:
        """Return the references of each source of a part, the canonical one first. An empty validation part is skipped."""

    @abstractmethod
    def prediction_sources(self) -> Sequence[str]:
        """Return the source texts to predict targets for."""

    @cached_property
    def src_tokenizer(self) -> Tokenizer:
        """The trained source tokenizer."""
        sides = (0,) if self._tgt_tokenizer is not None else (0, 1)
        return trained(self._src_tokenizer, lambda: (pair[side] for pair in self._pairs for side in sides))

    @cached_property
    def tgt_tokenizer(self) -> Tokenizer:
        """The trained target tokenizer."""
        if self._tgt_tokenizer is None:
            return self.src_tokenizer
        return trained(self._tgt_tokenizer, lambda: (target for _, target in self._pairs))

    @property
    def src_tokenizer_spec(self) -> dict[str, Any]:
        """Plain data that rebuilds the trained source tokenizer."""
        return self.src_tokenizer.spec

    @property
    def tgt_tokenizer_spec(self) -> dict[str, Any]:
        """Plain data that rebuilds the trained target tokenizer."""
        return self.tgt_tokenizer.spec

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"src_tokenizer": self.src_tokenizer_spec, "tgt_tokenizer": self.tgt_tokenizer_spec}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.src_tokenizer = tokenizers.build(state_dict["src_tokenizer"])
        self.tgt_tokenizer = tokenizers.build(state_dict["tgt_tokenizer"])

    @override
    def train_dataloader(self) -> DataLoader[Seq2SeqBatch]:
        encoded = [(self._source_ids(source), self._target_ids(target)) for source, target in self._pairs]
        kept = [i for i, pair in enumerate(encoded) if self.max_length is None or max(map(len, pair)) <= self.max_length]
        if not kept:
            raise ConfigurationError(f"max_length={self.max_length} leaves none of the {len(encoded)} training pairs; raise it")
        src, tgt = zip(*(encoded[i] for i in kept), strict=True)
        summary = Summary("train", counted(len(kept), "pair"))
        summary.note(len(encoded) - len(kept), f"left out (longer than max_length={self.max_length})")
        self._say(summary, [self._pairs[i] for i in kept], src, tgt)
        return self._loader(Examples(src=Sequences(src), tgt=Sequences(tgt), texts=None), order="shuffled")

    @override
    def val_dataloader(self) -> DataLoader[Seq2SeqBatch] | list[Any]:
        validation = self.evaluation_set("validation")
        return self._evaluation_loader("validation", validation) if validation else []

    @override
    def test_dataloader(self) -> DataLoader[Seq2SeqBatch]:
        return self._evaluation_loader("test", self.evaluation_set("test"))

    @override
    def predict_dataloader(self) -> DataLoader[Seq2SeqBatch]:
        texts: list[tuple[str, list[str]]] = [(source, []) for source in self.prediction_sources()]
        src = [self._source_ids(source) for source, _ in texts]
        self._say(Summary("predict", counted(len(src), "text")), texts, src, None)
        return self._loader(Examples(src=Sequences(src), tgt=None, texts=texts), order="given")

    @cached_property
    def _pairs(self) -> Sequence[Pair]:
        return self.training_pairs()

    def _source_ids(self, text: str) -> list[int]:
        return [*self.src_tokenizer.encode(text), Tokenizer.eos_id]

    def _target_ids(self, text: str) -> list[int]:
        return [Tokenizer.bos_id, *self.tgt_tokenizer.encode(text), Tokenizer.eos_id]

    def _evaluation_loader(self, part: Literal["validation", "test"], examples: Mapping[str, list[str]]) -> DataLoader[Seq2SeqBatch]:
        src = [self._source_ids(source) for source in examples]
        tgt = [self._target_ids(targets[0]) for targets in examples.values()]
        summary = Summary(part, counted(len(src), "example"))
        rows = self.summaries.rows.get(part, sum(map(len, examples.values())))
        summary.note(rows - len(src), "merged (rows with the same source are one example with several references)")
        self._say(summary, [(source, targets[0]) for source, targets in examples.items()], src, tgt)
        written = self.tgt_tokenizer.normalized  # as a model writes: equal texts are then equal strings
        texts = [(source, [written(target) for target in targets]) for source, targets in examples.items()]
        return self._loader(Examples(src=Sequences(src), tgt=Sequences(tgt), texts=texts), order="fixed")

    def _say(self, summary: Summary, texts: Sequence[tuple[str, Any]], src: Sequence[list[int]], tgt: Sequence[list[int]] | None) -> None:
        """Say what became of a split: the ids of both sides, and the texts that they are from."""
        for (source, _), ids in zip(texts, src, strict=True):
            summary.add(self.src_tokenizer, source, ids)
        for (_, target), ids in zip(texts if tgt else (), tgt or (), strict=True):
            summary.add(self.tgt_tokenizer, target, ids)
        self.summaries.say(summary)

    def _loader(self, examples: Examples, *, order: Literal["shuffled", "fixed", "given"]) -> DataLoader[Seq2SeqBatch]:
        return batch_loader(
            examples, trainer=self.trainer, batch_tokens=self.batch_tokens, order=order, seed=self.seed, num_workers=self.num_workers
        )
