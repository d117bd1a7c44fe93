from pathlib import Path
from typing import Any

import pytest
from samples import kjv as sample

from attnkit import ConfigurationError, corpora


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sample.write(tmp_path)
    return tmp_path


def build(folder: Path) -> Any:
    return corpora.build({"name": "kjv", "folder": str(folder)})


def test_verses_are_plain_text_one_on_a_line(folder: Path) -> None:
    assert build(folder).chapters == ["".join(f"{verse}\n" for verse in chapter) for chapter in sample.verses(45)]


def test_every_twentieth_chapter_is_for_validation_and_another_for_test(folder: Path) -> None:
    data = build(folder)
    parts = {part: ["".join(document) for document in data.documents(part)] for part in ("train", "validation", "test")}
    assert parts["validation"] == [data.chapters[i - 1] for i in (10, 30)]
    assert parts["test"] == [data.chapters[i - 1] for i in (20, 40)]
    assert sorted(chapter for part in parts.values() for chapter in part) == sorted(data.chapters)


def test_a_missing_package_and_a_damaged_one_are_told_apart(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cd .*none && apt-get download sword-text-kjv && dpkg-deb -x sword-text-kjv_\*.deb"):
        _ = build(tmp_path / "none").chapters
    path = folder / sample.MODULE / "ot.bzz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigurationError, match=r"ot is damaged .*unpack the package sword-text-kjv again"):
        _ = build(folder).chapters
