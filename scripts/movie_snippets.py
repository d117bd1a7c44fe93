"""Write rated sentences for the corpus `movie_snippets`, a folder for each domain.

The source is the sdist of the PyPI package `vaderSentiment` 0.5, which is downloaded unless it is in the folder.
"""

import gzip
import hashlib
import io
import json
import math
import tarfile
import zlib
from pathlib import Path

from fetching import downloaded, main, write_rows

from attnkit.files import UNPACKED, read_member, too_large
from attnkit.registry import ConfigurationError

ARCHIVE = "vaderSentiment-0.5.zip"
INNER = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
FILE = "hutto_ICWSM_2014/{}_GroundTruth.txt"
FILES = {"movies": "movieReviewSnippets", "amazon": "amazonReviewSnippets", "editorials": "nytEditorialSnippets", "tweets": "tweets"}


def convert(folder: Path) -> None:
    """Write the rows. A hash of the text selects the split: a tenth is validation, a tenth is test."""
    path = downloaded(ARCHIVE, "vaderSentiment==0.5", folder, "--no-binary", ":all:")
    try:
        unpacked = gzip.GzipFile(fileobj=io.BytesIO(read_member(path, INNER))).read(UNPACKED + 1)
        if len(unpacked) > UNPACKED:
            raise too_large(path)
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as inner:
            rated = {domain: [_rated(line) for line in _read(inner, FILE.format(name))] for domain, name in FILES.items()}
    except (OSError, EOFError, zlib.error, tarfile.TarError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path} is damaged, or is not the sdist of vaderSentiment 0.5 ({error}): download it again") from error
    for domain, rows in rated.items():
        for part in ("train", "validation", "test"):
            write_rows(folder / "movie_snippets" / domain / f"{part}.jsonl", (row for row in rows if _part(str(row["text"])) == part))


def _read(archive: tarfile.TarFile, name: str) -> list[str]:
    member = archive.getmember(name)
    file = archive.extractfile(member) if member.isreg() else None
    if file is None:
        raise ValueError(f"{name} is not a regular file")
    return file.read().decode("utf-8").splitlines()


def _rated(line: str) -> dict[str, str | float]:
    _, number, text = line.split("\t")
    rating = json.loads(number)  # keeps an integer an integer
    if not math.isfinite(rating):
        raise ValueError(f"the rating {number} is not finite")
    return {"text": text, "label": _class_of(rating), "rating": rating}


def _class_of(rating: float) -> str:
    """Return the class, as in the paper: the rating is divided by 4, and the bounds belong to the outer classes."""
    sentiment = rating / 4
    return "negative" if sentiment <= -0.05 else "positive" if sentiment >= 0.05 else "neutral"


def _part(text: str) -> str:
    return {0: "validation", 1: "test"}.get(int(hashlib.sha256(text.encode()).hexdigest(), 16) % 10, "train")


if __name__ == "__main__":
    main(convert)
