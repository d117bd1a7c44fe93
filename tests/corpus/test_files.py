"""Your own files, and the hub."""

import io
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnkit import ConfigurationError
from attnkit.corpus.files import Files
from attnkit.corpus.signals import read_signals


def table(path: Path, rows: list[tuple[str, str]]) -> str:
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    return str(path)


def test_rows_of_several_files_keep_their_order(tmp_path: Path) -> None:
    for name in "ba":
        table(tmp_path / f"{name}.tsv", [(name, "1"), (name, "2")])
    assert Files(train=str(tmp_path / "*.tsv")).pairs("train") == [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
    assert Files(train=[str(tmp_path / f"{name}.tsv") for name in "ba"], max_rows=1).pairs("train") == [("b", "1"), ("a", "1")]


def test_numbers_are_accepted_as_labels_but_not_as_texts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "x", "b": 1}\n')
    files = Files(train=str(tmp_path / "a.jsonl"), columns=["a", "b"])
    assert files.labelled("train") == [("x", "1")]
    (tmp_path / "large.jsonl").write_text(f'{{"a": "x", "b": 1{400 * "0"}}}\n')  # no float can hold it
    assert Files(train=str(tmp_path / "large.jsonl"), columns=["a", "b"]).labelled("train") == [("x", f"1{400 * '0'}")]
    with pytest.raises(ConfigurationError, match="column 'b' must be text, but is 1"):
        files.pairs("train")
    with pytest.raises(ConfigurationError, match=r"columns must name the text and the label, but are \['a'\]"):
        Files(train=str(tmp_path / "a.jsonl"), columns=["a"]).labelled("train")
    with pytest.raises(ConfigurationError, match=r"columns must name only the text and the label, .* but are \['a', 'b', 'a'\]"):
        Files(train=str(tmp_path / "a.jsonl"), columns=["a", "b", "a"]).labelled("train")


def test_training_rows_are_split_without_shared_sources(tmp_path: Path) -> None:
    rows = [(f"s{i // 2}", f"t{i}") for i in range(80)]
    files = Files(train=table(tmp_path / "a.tsv", rows), validation_fraction=0.25, test_fraction=0.1, seed=4)
    parts = [files.pairs(part) for part in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [52, 20, 8]
    assert sorted(row for part in parts for row in part) == sorted(rows)
    assert len({source for part in parts for source in {s for s, _ in part}}) == sum(len({s for s, _ in part}) for part in parts)
    alike = [("é", "1"), ("e\u0301", "2"), ("a", "3")]  # the same letter in two Unicode forms, which a tokenizer reads alike
    for seed in range(4):
        files = Files(train=table(tmp_path / "b.tsv", alike), validation_fraction=0.5, seed=seed)
        assert {target for _, target in files.pairs("train")} in ({"1", "2"}, {"3"})


def test_the_questions_about_a_passage_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("question\tpassage\tanswer\tstart\n" + "".join(f"q{i}\tword {i % 4}\tword\t0\n" for i in range(12)))
    files = Files(train=str(path), validation_fraction=0.25)
    train, validation = ({row.passage for row in files.questions(part)} for part in ("train", "validation"))
    assert (len(train), len(validation), train & validation) == (3, 1, set())


@pytest.mark.parametrize(
    ("file", "option", "reason"),
    [
        ("a.npz", {"max_rows": 5}, "max_rows has no effect on arrays, only on tables and data sets of the hub; remove it"),
        ("folder", {"max_rows": 5}, "max_rows has no effect on folders"),
        ("a.txt", {"max_rows": 5}, "max_rows has no effect on .txt files"),
        ("a.npz", {"columns": ["image", "label"]}, "columns has no effect on arrays, only on tables and data sets of the hub"),
        ("folder", {"columns": ["image", "label"]}, "columns has no effect on folders"),
        ("a.txt", {"streaming": True}, "streaming has no effect on .txt files, only on data sets of the hub"),
        ("a.csv", {"separator": "x"}, "separator has no effect on tables, only on .txt files"),
        ("a.csv", {"hub": "a/b", "validation_fraction": 0.1, "test": "b.csv"}, "hub has no effect, because train, validation and test"),
    ],
)
def test_an_option_without_effect_on_the_location_is_rejected(tmp_path: Path, file: str, option: dict[str, Any], reason: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigurationError, match=f"^{reason}"):
        Files(train=str(tmp_path / file), **option)
    Files(train=[str(tmp_path / file), "b.txt", "b.csv", "hub:a/b"], **{k: v for k, v in option.items() if k != "hub"})
    Files(train="b/*", **{k: v for k, v in option.items() if k != "hub"})  # it may match any file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the library takes for a data set with two splits."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mine"
    folder.mkdir()
    for split, count in (("train", 9), ("test", 3)):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({"text": f"{split} {i}", "label": "x"}) + "\n" for i in range(count)))
    return folder


@pytest.mark.parametrize("streaming", [False, True])
def test_hub_splits_become_the_corpus_splits(folder: Path, streaming: bool) -> None:
    hub = Files(hub=str(folder), streaming=streaming)
    assert [hub.has("train"), hub.has("validation"), hub.has("test")] == [True, False, True]
    assert hub.labelled("test") == [(f"test {i}", "x") for i in range(3)]
    assert ["".join(document) for document in hub.documents("train")] == [f"train {i}" for i in range(9)]
    assert len(Files(hub=str(folder), max_rows=4, streaming=streaming).labelled("train")) == 4
    assert len(Files(train=f"hub:{folder}:train[:50%]").labelled("train")) == 4
    own = table(folder / "own.tsv", [("a", "x")])
    assert Files(hub=str(folder), validation=own).labelled("validation") == [("a", "x")]
    assert len(Files(hub=str(folder), validation_fraction=1 / 3, streaming=streaming).labelled("validation")) == 3


def test_streaming_is_passed_to_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[dict[str, Any]] = []
    load = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **options: asked.append(options) or load(*a, **options))
    Files(hub=str(folder), streaming=True).labelled("test")
    Files(hub=str(folder)).labelled("test")
    assert asked == [{"split": "test", "streaming": True}, {"split": "test"}]


def test_an_unusable_hub_row_is_named(folder: Path) -> None:
    (folder / "test.jsonl").write_text('{"text": null, "label": "x"}\n{"text": "a", "label": "y"}\n')
    with pytest.raises(ConfigurationError, match=r"mine:test, row 0: column 'text' must be text, but is None .*on_bad_rows: skip"):
        Files(hub=str(folder)).labelled("test")
    assert Files(hub=str(folder), on_bad_rows="skip").labelled("test") == [("a", "y")]


def test_a_missing_hub_column_is_not_reported_as_a_bad_row(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no column 'source'.*data.corpus.columns chooses the columns, now \[source, target\]$"):
        Files(hub=str(folder)).pairs("train")
    assert Files(hub=str(folder), columns=["text", "label"]).pairs("test")[0] == ("test 0", "x")
    (folder / "test.jsonl").write_text('{"text": null}\n{"text": "a"}\n')  # a bad row
    with pytest.raises(ConfigurationError, match=r"Correct the row, or omit such rows with on_bad_rows: skip$"):
        list(Files(hub=str(folder)).documents("test"))


def test_a_missing_hub_split_is_reported_with_the_available_ones(folder: Path) -> None:
    message = r"no validation data \(hub:\S+ has the splits train, test\): set data.corpus.validation .*or data.corpus.validation_fraction"
    with pytest.raises(ConfigurationError, match=message):
        Files(hub=str(folder)).labelled("validation")


def test_without_a_network_the_error_suggests_a_hub_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*_: Any) -> None:
        raise ConnectionError("Couldn't reach 'a/b' on the Hub")

    monkeypatch.setattr(datasets, "get_dataset_split_names", unreachable)
    with pytest.raises(
        ConfigurationError, match=r"hub:a/b: cannot be loaded: .*Without the network, hub:FOLDER reads the data set's files"
    ):
        Files(hub="a/b").has("train")


@pytest.fixture(params=["image", "audio"])
def media(folder: Path, request: pytest.FixtureRequest) -> tuple[Path, str]:
    """A data set of images or sounds with texts, of which two rows have the same file, and the name of its column."""
    datasets = pytest.importorskip("datasets")
    pillow = pytest.importorskip("PIL.Image")

    def content(seed: int) -> bytes:
        found, values = io.BytesIO(), np.random.default_rng(seed).integers(256, size=(4, 6), dtype=np.uint8)
        if request.param == "image":
            pillow.fromarray(values).save(found, "PNG")
            return found.getvalue()
        with wave.open(found, "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(values.tobytes() * (100 + seed))
        return found.getvalue()

    feature = datasets.Image() if request.param == "image" else datasets.Audio()
    for split in ("train", "test"):
        rows = [({"bytes": content(seed), "path": None}, text) for seed, text in ((0, "a"), (1, "b"), (0, "c"))]
        columns = {request.param: [file for file, _ in rows], "said": [text for _, text in rows]}
        data = datasets.Dataset.from_dict(columns).cast_column(request.param, feature)  # to build it with its features needs torchcodec
        data.to_parquet(folder / f"{split}.parquet")
        (folder / f"{split}.jsonl").unlink()
        for seed in (0, 1):
            (folder.parent / f"{seed}.{'png' if request.param == 'image' else 'wav'}").write_bytes(content(seed))
    return folder, request.param


@pytest.mark.parametrize("streaming", [False, True])
def test_hub_images_and_sounds_match_their_files(media: tuple[Path, str], streaming: bool) -> None:
    folder, column = media
    found = Files(hub=str(folder), columns=[column, "said"], streaming=streaming).signals("test", shape=None)
    suffix = "png" if column == "image" else "wav"
    expected = Files(test=table(folder.parent / "own.tsv", [(f"{seed}.{suffix}", "x") for seed in (0, 1)])).signals("test", shape=None)
    assert found.texts == [["a", "c"], ["b"]]
    assert found.names == [f"hub:{folder}:test, row {i}" for i in (0, 1)]
    assert all(torch.equal(*arrays) for arrays in zip(found.arrays, expected.arrays, strict=True))
    aside = Files(train=f"hub:{folder}:train", columns=[column, "said"], validation_fraction=0.5, streaming=streaming)
    assert [len(aside.signals(part, shape=None).arrays) for part in ("train", "validation")] == [1, 1]
    predicted = read_signals(f"hub:{folder}:test", shape=None, columns=[column])
    assert predicted.names == [f"hub:{folder}:test, row {i}" for i in (0, 1, 0)]


def test_a_hub_column_without_images_or_sounds_is_named(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="test, row 0: column 'text' has str instead of images or sounds"):
        Files(hub=str(folder), columns=["text", "label"]).signals("test", shape=None)


def test_line_breaks_are_normalised_in_every_format(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'text,label\r\n"so good,\r\nreally",yes\r\n')
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "so good,\r\nreally", "label": "yes"}))
    for name in ("a.csv", "a.jsonl"):
        files = Files(train=str(tmp_path / name))
        assert files.labelled("train") == [("so good,\nreally", "yes")]
        assert ["".join(document) for document in files.documents("train")] == ["so good,\nreally"]
