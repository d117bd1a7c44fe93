"""Texts labelled word by word: where each word begins among the tokens, and batches of such texts."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.data.batching import Sequences, TokenExamples
from attnkit.data.loading import Share
from attnkit.tokenizer import Tokenizer


class WordBatch(TypedDict, total=False):
    """A batch of texts, with labels except in prediction, and with the texts themselves except in training."""

    example: Tensor  # [B] int64: the index of each text; -1 for a filler
    tokens: Tensor  # [B, T] int64
    words: Tensor  # [B, T] int64: the number of the word that begins at a token, from 1; 0 elsewhere
    label: Tensor  # int64: the class of each token [B, T], or the first and last token of the answer [B, 2]; -1 where there is none
    text: list[Any]


class Read(NamedTuple):
    """The ids of a text, and for each the number, from 1, of the word that begins there; 0 elsewhere."""

    ids: list[int]
    words: list[int]


def read_words(tokenizer: Tokenizer, words: Sequence[str], *, before: Sequence[int] = ()) -> Read:
    """Return the tokens of words between bos and eos; the ids `before` come between bos and the words.

    A word that follows another is encoded with the space before it, as in running text. A word of which the tokenizer removes all
    characters, such as a lone zero-width space, is unknown.

    Example:
        >>> import attnkit
        >>> read_words(attnkit.tokenizers.build("character").train(["ab c"]), ["ab", "c"])
        Read(ids=[1, 5, 6, 4, 7, 2], words=[0, 1, 0, 2, 0, 0])
    """
    ids = [Tokenizer.bos_id, *before]
    numbers = [0] * len(ids)
    for number, word in enumerate(words, start=1):
        found = tokenizer.encode(word if number == 1 else f" {word}") or [Tokenizer.unk_id]
        ids += found
        numbers += [number, *[0] * (len(found) - 1)]
    return Read([*ids, Tokenizer.eos_id], [*numbers, 0])


class WordExamples(TokenExamples):
    """Encoded texts, and the labels of their words (`of_words`) or the first and last tokens of their answers; None in prediction."""

    def __init__(
        self, *, read: Sequence[Read], labels: Sequence[Sequence[int]] | None, of_words: bool, texts: Sequence[Any] | None
    ) -> None:
        super().__init__(Sequences([ids for ids, _ in read]), texts)
        self.words = Sequences([numbers for _, numbers in read])
        self.answers = None if labels is None else Sequences([[label + 1 for label in row] for row in labels])
        self.of_words = of_words

    @override
    def content(self) -> list[Any]:
        return [*super().content(), *self.words.content(), *([] if self.answers is None else self.answers.content())]

    @override
    def __getitem__(self, share: Share) -> WordBatch:
        batch: WordBatch = super().__getitem__(share)
        batch["words"] = self.words.padded(share.rows, batch["tokens"].shape[1])
        if self.answers is not None:
            label = self.answers.padded(share.rows) - 1
            if self.of_words:
                label = torch.nn.functional.pad(label, (1, 0), value=-1).gather(1, batch["words"])
            batch["label"] = torch.full_like(label, -1) if share.is_filler else label
        return batch
