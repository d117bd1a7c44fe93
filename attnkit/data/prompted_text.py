"""Prompts and answers; a language model learns only the answers and where they end."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from typing_extensions import override

from attnkit.corpus.base import AnswerCorpus
from attnkit.data.base import Split, TokenizedFraming
from attnkit.data.batching import Sequences, TokenExamples
from attnkit.data.config import TokenizedRowsConfig
from attnkit.data.loading import Share
from attnkit.data.packing import LanguageModelBatch
from attnkit.registry import datasets, keywords_of
from attnkit.tokenizer import Tokenizer


@datasets.register("prompted_text")
class PromptedText(TokenizedFraming[LanguageModelBatch]):
    """Prompts and answers for the task `causal_lm`: the loss and the metrics count the answers and the end of the row.

    A row is bos, then alternating prompts and answers, then eos. `tokens` [B, T] are the inputs; `targets` [B, T] are the next tokens where
    these belong to an answer or end the last one, and padding elsewhere. In evaluation, `answers` [B] is the number of answers in each row,
    with which `causal_lm` logs `exact_match`. Pairs of texts are prompts with one answer each. Nothing separates a prompt from its
    answer: if the answer may begin anywhere, end the prompts with a mark, as in `cat =`.

    Args:
        corpus: The rows: a synthetic task such as `copy`, any corpus of pairs, or the path of your own file of pairs.

    Example:
        >>> data = PromptedText(corpus={"name": "copy", "length": 2}, tokenizer="word", batch_tokens=6)
        >>> batch = next(iter(data.test_dataloader()))
        >>> data.tokenizer.tokens(batch["tokens"][0].tolist()), data.tokenizer.tokens(batch["targets"][0].tolist())
        (['<bos>', '5', '1', '=', '5', '1'], ['<pad>', '<pad>', '<pad>', '5', '1', '<eos>'])
    """

    takes: ClassVar = AnswerCorpus
    corpus: AnswerCorpus
    config: TokenizedRowsConfig

    @keywords_of(TokenizedRowsConfig)
    def __init__(self, config: TokenizedRowsConfig) -> None:
        super().__init__(config, config.tokenizer)

    @override
    def training_texts(self) -> Iterable[str]:
        return (text for row in self.rows("train") for text in row)

    @override
    def read(self, part: Split) -> Sequence[Any]:
        return self.prediction_inputs("source") if part == "predict" else self.corpus.turns(part)

    @override
    def examples(self, part: Split) -> TokenExamples:
        rows = self.rows(part)
        if part == "predict":
            return self.prompts(rows)
        encoded = [[self.tokenizer.encode(text) for text in row] for row in rows]
        kept, summary = self.within_limit(part, [sum(map(len, turns)) + 2 for turns in encoded], unit="row")
        for i in kept:
            for text, ids in zip(rows[i], encoded[i], strict=True):
                summary.add(self.tokenizer, text, ids)
        self.note_seen(summary, [row for row in rows if len(row) == 2])  # rows with several answers may begin alike
        self.summaries.say(summary)
        return Answers([encoded[i] for i in kept], counts=part != "train")


class Answers(TokenExamples):
    """Rows of ids, alternating between prompts and answers; with `counts`, batches have the number of answers of each row."""

    def __init__(self, rows: Sequence[Sequence[Sequence[int]]], *, counts: bool) -> None:
        inputs, targets = [], []
        for turns in rows:
            ids = [i for turn in turns for i in turn]
            scored = [i if place % 2 else Tokenizer.pad_id for place, turn in enumerate(turns) for i in turn]
            inputs.append([Tokenizer.bos_id, *ids])
            targets.append([*scored, Tokenizer.eos_id])
        super().__init__(Sequences(inputs), None)
        self.targets = Sequences(targets)
        self.answers = torch.tensor([len(turns) // 2 for turns in rows]) if counts else None

    @override
    def content(self) -> list[Any]:
        return [*super().content(), *self.targets.content()]

    @override
    def __getitem__(self, share: Share) -> LanguageModelBatch:
        batch: LanguageModelBatch = super().__getitem__(share)
        targets = self.targets.padded(share.rows, batch["tokens"].shape[1])
        batch["targets"] = torch.full_like(targets, Tokenizer.pad_id) if share.is_filler else targets
        if self.answers is not None:
            batch["answers"] = self.answers[torch.as_tensor(share.rows)] * (not share.is_filler)
        return batch
