"""Sentences from movie reviews, with human sentiment ratings."""

import gzip
import hashlib
import io
import math
import tarfile
import zlib
from functools import cached_property
from pathlib import Path
from typing import Literal

from typing_extensions import override

from attnkit.corpus.base import LabelCorpus, Labelled, Labels, Part
from attnkit.corpus.packages import find_download
from attnkit.files import UNPACKED, read_member, too_large
from attnkit.registry import ConfigurationError, corpora

ARCHIVE = "vaderSentiment-0.5.zip"
INNER = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
FILE = "hutto_ICWSM_2014/{}_GroundTruth.txt"

Domain = Literal["movies", "amazon", "editorials", "tweets"]

_FILES = {"movies": "movieReviewSnippets", "amazon": "amazonReviewSnippets", "editorials": "nytEditorialSnippets", "tweets": "tweets"}
_PARTS: dict[int, Part] = {0: "validation", 1: "test"}


@corpora.register("movie_snippets")
class MovieSnippets(LabelCorpus):
    """10,605 sentences from movie reviews, each rated by 20 people from -4 (most negative) to 4 (most positive).

    The label is the mean rating, or one of three classes: as in the paper, the rating is divided by 4, and is `negative` up to -0.05,
    `positive` from 0.05, and `neutral` in between (5,252, 5,167 and 186 sentences; as in the paper, the bounds belong to the outer
    classes).

    The splits are attnkit's, since the paper has none: a hash of the text selects the split, so the splits are mixed (the file is sorted)
    and reproducible, and repeated sentences are in one split only. A tenth is for validation, a tenth for test.

    Source: Hutto and Gilbert 2014, https://doi.org/10.1609/icwsm.v8i1.14550, from the sdist of the PyPI package `vaderSentiment` 0.5 (MIT).

    Args:
        domain: The rated texts: `movies`; or, from the same sdist, sentences from Amazon reviews (`amazon`, 3,708) or from editorials of
            the New York Times (`editorials`, 5,190), or `tweets` (4,200).
        folder: The folder of the sdist.
        labels: `class`, or `number`: the mean rating.

    Raises:
        ConfigurationError: The sdist is missing (the message says how to get it) or is a different one.
    """

    def __init__(self, *, domain: Domain = "movies", folder: str = "data", labels: Labels = "class") -> None:
        super().__init__()
        self.domain, self.folder, self.labels = domain, folder, labels

    @override
    def check(self, part: Part) -> None:
        self._archive()

    @override
    def labelled(self, part: Part) -> list[Labelled]:
        return [
            (text, rating if self.labels == "number" else _class_of(float(rating))) for text, rating in self._rated if _part(text) == part
        ]

    @cached_property
    def _rated(self) -> list[tuple[str, str]]:
        """Each sentence and its mean rating, in the order of the file."""
        path = self._archive()
        try:
            unpacked = gzip.GzipFile(fileobj=io.BytesIO(read_member(path, INNER))).read(UNPACKED + 1)
            if len(unpacked) > UNPACKED:
                raise too_large(path)
            with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as inner:
                member = inner.getmember(FILE.format(_FILES[self.domain]))
                if not member.isreg() or member.size > len(unpacked):
                    raise ValueError(f"{member.name} is not a regular file")
                file = inner.extractfile(member)
                assert file is not None
                return [_sentence(line) for line in file.read().decode("utf-8").splitlines()]
        except (OSError, EOFError, zlib.error, tarfile.TarError, KeyError, ValueError) as error:
            raise ConfigurationError(
                f"{path} is damaged, or is not the sdist of vaderSentiment 0.5 ({error}): download it again"
            ) from error

    def _archive(self) -> Path:
        return find_download(ARCHIVE, requirement="vaderSentiment==0.5", options="--no-binary :all: ", folder=self.folder)


def _sentence(line: str) -> tuple[str, str]:
    _, rating, text = line.split("\t")
    if not math.isfinite(float(rating)):
        raise ValueError(f"the rating {rating} is not finite")
    return text, rating


def _class_of(rating: float) -> str:
    sentiment = rating / 4
    return "negative" if sentiment <= -0.05 else "positive" if sentiment >= 0.05 else "neutral"


def _part(text: str) -> Part:
    return _PARTS.get(int(hashlib.sha256(text.encode()).hexdigest(), 16) % 10, "train")
