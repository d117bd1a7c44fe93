from pathlib import Path
from typing import Any

import pytest
from samples import kjv as sample

from attnkit import ConfigurationError, datasets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sample.write(tmp_path)
    return tmp_path


def build(folder: Path, **arguments: Any) -> Any:
    return datasets.build({"name": "kjv", "folder": str(folder), "context": 32, "batch_tokens": 64, **arguments})


def test_verses_are_plain_text_one_on_a_line(folder: Path) -> None:
    assert build(folder).chapters == ["".join(f"{verse}\n" for verse in chapter) for chapter in sample.verses(45)]


def test_every_twentieth_chapter_is_for_validation_and_another_for_test(folder: Path) -> None:
    data = build(folder)
    parts = {part: data.part(part) for part in ("train", "validation", "test")}
    assert parts["validation"] == [data.chapters[i - 1] for i in (10, 30)]
    assert parts["test"] == [data.chapters[i - 1] for i in (20, 40)]
    assert sorted(chapter for part in parts.values() for chapter in part) == sorted(data.chapters)


def test_a_chapter_is_a_document_and_its_characters_are_counted(folder: Path) -> None:
    data = build(folder)
    batches = list(data.test_dataloader())
    assert sum(int((batch["targets"] == 2).sum()) for batch in batches) == 2
    assert sum(int(batch["characters"]) for batch in batches) == sum(map(len, data.part("test")))
    (prompts,) = build(folder, predict=prompt_file(folder)).predict_dataloader()
    assert prompts["text"] == ["The king", "And"]


def prompt_file(folder: Path) -> str:
    path = folder / "prompts.txt"
    path.write_text("The king\nAnd\n")
    return str(path)


def test_a_missing_package_and_a_damaged_one_are_told_apart(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"apt-get download sword-text-kjv && dpkg-deb -x sword-text-kjv_\*.deb .*none"):
        _ = build(tmp_path / "none").chapters
    path = folder / sample.MODULE / "ot.bzz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigurationError, match=r"ot is damaged .*unpack the package sword-text-kjv again"):
        _ = build(folder).chapters


def test_there_is_nothing_to_predict_without_prompts(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="kjv has no prompts to continue: set predict"):
        build(folder).predict_dataloader()
