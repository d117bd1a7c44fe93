"""Named data sets: files of a script, or the hub."""

from pathlib import Path
from typing import Any

import pytest
from samples import fashion_mnist, movie_snippets

from attnkit import ConfigurationError, corpora, datasets
from attnkit.corpus.fingerprint import fingerprint
from attnkit.corpus.imdb import IMDB
from attnkit.corpus.named import Named
from attnkit.data.labelled_images import LabelledImages

NAMED = [name for name in sorted(corpora.built_in()) if issubclass(corpora.get(name), Named)]
PARTS = ("train", "validation", "test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    movie_snippets.write(tmp_path)
    return tmp_path


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A hub with the rows of imdb, the same in training and test."""
    library = pytest.importorskip("datasets")
    rows = [{"text": text, "label": int(label)} for text, label in IMDB(folder=str(folder)).read("train", ["text", "label"])]
    monkeypatch.setattr(library, "load_dataset", lambda name, config, split: rows if name == IMDB.hub else [])
    monkeypatch.setattr(library, "get_dataset_split_names", lambda name: ["train", "test", "unsupervised"])
    return rows


def document(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make these rows the documented ones."""
    cells = (cell for row in rows for cell in (row["text"], str(row["label"])))
    monkeypatch.setattr(IMDB, "digests", {"train": fingerprint(cells)[:16]})


@pytest.mark.parametrize("name", NAMED)
def test_without_its_files_the_error_names_the_download_command(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (Path(__file__).parents[2] / "scripts" / f"{corpora.get(name).script}.py").is_file()
    spec = {"name": name, "folder": str(tmp_path), **({"source": "files"} if corpora.get(name).hub else {})}
    message = rf"there is no .*train\.\w+; run `python scripts/{name}.py --folder {tmp_path}` in a checkout of attnkit's repository"
    with pytest.raises(ConfigurationError, match=message):
        corpora.build(spec).check("train")


@pytest.mark.parametrize("name", [name for name in NAMED if corpora.get(name).hub])
def test_without_files_or_hub_the_error_names_both_remedies(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("datasets")

    def refuse(name: str) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(library, "get_dataset_split_names", refuse)
    message = rf"hub:{corpora.get(name).hub}: cannot be loaded: ConnectionError: no network. Without the hub, run `python scripts/{name}.py"
    with pytest.raises(ConfigurationError, match=message):
        corpora.build({"name": name, "folder": str(tmp_path)}).check("train")


def test_files_take_precedence_over_the_hub_with_equal_rows(
    folder: Path, hub: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    document(hub, monkeypatch)
    by_files, by_hub = IMDB(folder=str(folder)), IMDB(folder="absent")
    assert (by_files.chosen, by_hub.chosen) == ("files", "hub")
    assert by_files.labelled("train") == by_hub.labelled("train") == IMDB(source="hub", folder=str(folder)).labelled("train")
    assert by_files.origins == {"train": f"{folder}/imdb/train.jsonl"}
    assert by_hub.origins == {"train": f"hub:{IMDB.hub}:train"}
    assert not by_files.has("test")
    assert by_hub.labelled("test")


def test_differing_hub_rows_are_rejected_unless_requested(folder: Path, hub: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    document(hub, monkeypatch)
    hub[0]["text"] += "."
    with pytest.raises(ConfigurationError, match="has rows that differ from the documented ones: set source: hub to use them anyway"):
        IMDB(folder="absent").labelled("train")
    asked = IMDB(source="hub")
    assert asked.labelled("train")[0][0].endswith("..")
    assert asked.origins == {"train": f"hub:{IMDB.hub}:train, whose rows differ from the documented ones"}


def test_a_summary_states_the_origin_of_rows(folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = {"name": "movie_snippets", "folder": str(folder)}
    spec = {"name": "labelled_text", "corpus": snippets, "unlabelled": [{"name": "imdb", "folder": str(folder)}], "tokenizer": "word"}
    with caplog.at_level("INFO"), pytest.warns(UserWarning, match="unknown"):
        datasets.build(spec).train_dataloader()
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("train:")]
    origin = f"; from {folder}/movie_snippets/movies/train.jsonl, whose rows differ from the documented ones"
    assert f"{origin}; from {folder}/imdb/train" in line


def test_image_corpora_have_a_summary(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fashion_mnist.write(tmp_path, train=60, test=20)
    data = LabelledImages(corpus={"name": "fashion_mnist", "folder": str(tmp_path), "validation_images": 5})
    with caplog.at_level("INFO"):
        data.train_dataloader(), data.val_dataloader()
    origin = f"from {tmp_path}/fashion_mnist/train.npz, whose rows differ from the documented ones"
    assert [record.getMessage() for record in caplog.records] == [f"train: 55 images; {origin}", f"validation: 5 images; {origin}"]


def test_the_files_are_readable_by_files_and_by_datasets(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    named = corpora.build({"name": "movie_snippets", "folder": str(folder)})
    mine = corpora.build({"name": "files", **{part: str(folder / "movie_snippets" / "movies" / f"{part}.jsonl") for part in PARTS}})
    hub = corpora.build(f"hub:{folder}/movie_snippets/movies")
    for part in PARTS:
        assert mine.labelled(part) == named.labelled(part) == hub.labelled(part)
