"""How the `datasets` library and attnkit read faulty and hostile files: the table of docs/explanation/limits.md.

Run it with `ARROW_DEFAULT_MEMORY_POOL=system HF_DATASETS_OFFLINE=1 python docs/_tools/hostile_by_datasets.py`.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import datasets
import pandas  # noqa: F401 -- imported before memory is measured: `datasets` reads CSV with it

sys.path.insert(0, str(Path(__file__).parents[2]))

from attnkit.corpus.image_reading import read_images
from attnkit.corpus.reading import read_columns
from tests.hostile.files import images, parquets, tables
from tests.hostile.limits import Outcome, survive


def short_row(folder: Path) -> Path:
    """A CSV file with a row of one cell under a header of two."""
    path = folder / "a.csv"
    path.write_text("text,label\na,b\nonly one\n", encoding="utf-8")
    return path


def by_datasets(kind: str, path: Path) -> int:
    """Return the number of rows."""
    place = {"data_dir": str(path.parent)} if kind == "imagefolder" else {"data_files": str(path)}
    with tempfile.TemporaryDirectory() as cache:
        return sum(1 for _ in datasets.load_dataset(kind, split="train", cache_dir=cache, **place))


def by_attnkit(kind: str, path: Path) -> int:
    """Return the number of rows."""
    if kind == "imagefolder":
        return len(read_images(str(path.parent), labelled=False).names)
    return len(read_columns(str(path), ["text"]))


def described(outcome: Outcome) -> str:
    """Return the outcome of a reading in a few words."""
    if outcome.signal is not None:
        return f"killed by {outcome.signal}"
    return f"{outcome.error or 'read'} ({outcome.megabytes:.0f} MB, {outcome.seconds:.1f} s)"


FILES: tuple[tuple[str, Callable[[Path], Path]], ...] = (
    ("csv", short_row),
    ("json", tables.jsonl_deep),
    ("parquet", parquets.parquet_bomb),
    ("parquet", parquets.parquet_page_bomb),
    ("imagefolder", images.image_within_pillow),
    ("imagefolder", images.image_postscript),
)

if __name__ == "__main__":
    datasets.disable_progress_bars()
    print(f"| file | datasets {datasets.__version__} | attnkit |\n|---|---|---|")
    for kind, make in FILES:
        with tempfile.TemporaryDirectory() as folder:
            path = make(Path(folder))
            outcomes = [survive(partial(read, kind, path), seconds=20, megabytes=2000) for read in (by_datasets, by_attnkit)]
        print(f"| {(make.__doc__ or '').rstrip('.')} | {' | '.join(map(described, outcomes))} |")
