import subprocess
from pathlib import Path
from typing import Any

import pytest
import spoken_words

from attnkit import ConfigurationError, corpora


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the packages lie; the synthesizer writes what it is to say."""

    def run(command: list[Any], *, env: dict[str, str], check: bool, capture_output: bool = False) -> None:
        if "-w" in command:
            Path(command[command.index("-w") + 1]).write_text(f"{command[command.index('-v') + 1]} {command[-1]}", encoding="utf-8")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(spoken_words, "package_file", lambda package, file, folder: folder / file)
    monkeypatch.setattr(spoken_words, "SIZES", {"validation": 5, "test": 10, "train": 40})
    return tmp_path


def read(folder: Path) -> dict[str, list[list[str]]]:
    tables = {part: (folder / "spoken_words" / f"{part}.tsv").read_text(encoding="utf-8") for part in ("train", "validation", "test")}
    return {part: [line.split("\t") for line in table.splitlines()[1:]] for part, table in tables.items()}


def test_every_phoneme_of_the_dictionary_can_be_spoken() -> None:
    phonemes = {phoneme for pronunciation in spoken_words.pronunciations().values() for phoneme in pronunciation.split()}
    assert len({phoneme.rstrip("012") for phoneme in phonemes}) == 39
    assert all(len(spoken_words.spoken(phoneme)) > len("[[]]") for phoneme in phonemes)


def test_different_phonemes_sound_different() -> None:
    names = {phoneme.rstrip("012") for text in spoken_words.pronunciations().values() for phoneme in text.split()}
    assert len({spoken_words.spoken(name) for name in names}) == 39


def test_each_word_is_spoken_once_and_spelled_as_in_the_dictionary(folder: Path) -> None:
    spoken_words.convert(folder)
    tables = read(folder)
    assert {part: len(rows) for part, rows in tables.items()} == {"train": 40, "validation": 5, "test": 10}
    words = [Path(file).stem for rows in tables.values() for file, _ in rows]
    assert len({*words}) == 55
    listed = corpora.build("cmudict").references("train")
    known = [(Path(file).stem, text) for rows in tables.values() for file, text in rows if Path(file).stem in listed]
    assert len(known) > 30
    assert all(text in listed[word] for word, text in known)
    said = [(folder / "spoken_words" / file).read_text(encoding="utf-8").split(maxsplit=1) for rows in tables.values() for file, _ in rows]
    assert len({voice for voice, _ in said}) > 5
    assert all(text.startswith("[[") for _, text in said)


def test_the_sounds_are_reproducible(folder: Path) -> None:
    spoken_words.convert(folder)
    tables = read(folder)
    spoken_words.convert(folder)
    assert read(folder) == tables


def test_a_synthesizer_that_does_not_run_raises_one_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise OSError("Exec format error")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ConfigurationError, match=r"espeak-ng does not run .*apt-get install espeak-ng"):
        spoken_words.synthesizer(folder)
