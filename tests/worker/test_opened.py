"""The hash of a data file is that of what a run has read, whatever becomes of the file meanwhile."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from attnkit.corpus.cmudict import CMUDict
from attnkit.corpus.files import Files
from attnkit.worker import opened
from attnkit.worker.provenance import changes
from attnkit.worker.sources import UNKNOWN, digest, packages
from tests.ablation.conftest import made


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that this process has read since it began to watch."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "words.tsv"
    file.write_text("a\tb\n")
    opened.watch()
    file.read_text()
    return file


def edit(file: Path, text: str) -> str:
    """Change a file as an editor does, which renames a new one; return its hash."""
    draft = file.with_name("draft")
    draft.write_text(text)
    draft.replace(file)
    return digest(file)


def asked() -> dict[str, str]:
    return opened.digests(without=())


def test_a_file_edited_during_a_run_has_no_single_hash(words: Path) -> None:
    before = digest(words)
    assert asked() == {"words.tsv": before}
    after = edit(words, "a\tc\n")
    assert asked() == {"words.tsv": f"{before}, then {after}"}
    assert changes(made(data=asked()), current=None) == ["words.tsv was changed during the run"]
    edit(words, "a\tb\n")
    assert asked() == {"words.tsv": before}, "as it was"


def test_a_file_edited_before_hashing_has_unknown_content(words: Path) -> None:
    after = edit(words, "a\tc\n")
    assert asked() == {"words.tsv": f"{UNKNOWN}, then {after}"}


def test_touching_a_file_does_not_change_its_hash(words: Path) -> None:
    before = asked()
    words.touch()
    assert asked() == before


def test_files_read_by_a_logger_are_not_data(words: Path, tmp_path: Path) -> None:
    own = tmp_path / "records.yaml"
    own.write_text("of an earlier run")
    logger: dict[str, Any] = {"__name__": "lightning.pytorch.loggers.mlflow"}
    exec("def read(*files): return [file.read_text() for file in files]", logger)
    opened.watch()
    logger["read"](own, words)
    assert asked() == {}
    words.read_text()
    assert asked().keys() == {"words.tsv"}, "it was read by another one, too"


def test_new_files_in_a_pattern_or_image_folder_change_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"the text of {name}\n")
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        Image.new("L", (2, 2)).save(tmp_path / "pets" / name / "1.png")
    opened.watch()
    corpus = Files(train="*.txt", validation="pets")
    [*map(list, corpus.documents("train"))]
    corpus.images("validation", shape=None)
    run = made(data=asked())
    assert {"*.txt", "a.txt", "b.txt", "pets", "pets/cat/1.png"} <= run.data.keys()
    assert changes(run, current=None) == []
    (tmp_path / "c.txt").write_text("another\n")
    (tmp_path / "pets/dog/2.png").write_bytes((tmp_path / "pets/dog/1.png").read_bytes())
    assert [line.partition(" (")[0] for line in changes(run, current=None)] == ["*.txt has changed", "pets has changed"]
    (tmp_path / "c.txt").unlink()
    (tmp_path / "pets/dog/2.png").unlink()
    (tmp_path / "b.txt").rename(tmp_path / "d.txt")
    assert [line.partition(" (")[0] for line in changes(run, current=None)] == ["b.txt is gone", "*.txt has changed"]
    Files(train="*.txt").check("train")
    assert changes(made(data=asked()), current=None) == ["*.txt was changed during the run"]


def test_a_package_whose_data_were_read_counts_by_its_version_though_it_is_not_imported() -> None:
    """The dictionary of the g2p recipes: runs with an older one counted as those of today's."""
    opened.watch()
    assert CMUDict().pairs("test")
    assert "cmudict" not in sys.modules
    assert packages(opened.packages_read())["cmudict"] == version("cmudict")
    assert asked() == {}
