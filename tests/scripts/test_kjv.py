from pathlib import Path

import pytest
from kjv import chapters
from samples import kjv as sample

from attnkit import ConfigurationError, corpora


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sample.write(tmp_path)
    return tmp_path


def test_verses_are_plain_text_one_per_line(folder: Path) -> None:
    assert chapters(folder) == ["".join(f"{verse}\n" for verse in chapter) for chapter in sample.verses(45)]


def test_every_twentieth_chapter_goes_to_validation_and_another_to_test(folder: Path) -> None:
    data, whole = corpora.build({"name": "kjv", "folder": str(folder)}), chapters(folder)
    parts = {part: ["".join(document) for document in data.documents(part)] for part in ("train", "validation", "test")}
    assert parts["validation"] == [whole[i - 1] for i in (10, 30)]
    assert parts["test"] == [whole[i - 1] for i in (20, 40)]
    assert sorted(chapter for part in parts.values() for chapter in part) == sorted(whole)


def test_a_damaged_package_is_named(folder: Path) -> None:
    path = folder / sample.MODULE / "ot.bzz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigurationError, match=r"ot is damaged .*unpack the package sword-text-kjv again"):
        chapters(folder)
