import os
from pathlib import Path

import pytest

import attnkit
from attnkit import files
from attnkit.cli.kept import kept
from attnkit.files import cache_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))


def test_a_text_is_computed_once() -> None:
    made: list[str] = []

    def make() -> str:
        made.append("text")
        return "a text"

    assert [kept("x", make), kept("x", make)] == ["a text", "a text"]
    assert len(made) == 1


def test_a_changed_attnkit_file_invalidates_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "attnkit"
    package.mkdir()
    source = package / "files.py"
    source.write_text("", encoding="utf-8")
    monkeypatch.setattr(files, "__file__", str(source))
    assert kept("x", lambda: "old") == "old"
    assert kept("x", lambda: "new") == "old"
    os.utime(source, ns=(1, 1))
    assert kept("x", lambda: "new") == "new"
    assert len(list((cache_folder() / "texts").iterdir())) == 1  # the old one is gone


def test_a_newly_registered_component_invalidates_the_cache() -> None:
    assert kept("x", lambda: "old") == "old"

    @attnkit.norms.register("kept_norm")
    class KeptNorm:
        """A norm."""

    try:
        assert kept("x", lambda: "new") == "new"
    finally:
        del attnkit.norms._classes["kept_norm"]


def test_without_a_cache_the_text_is_recomputed_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a_file"
    file.write_text("", encoding="utf-8")
    monkeypatch.setenv("ATTNKIT_CACHE", str(file))
    assert [kept("x", lambda: "1"), kept("x", lambda: "2")] == ["1", "2"]


def test_a_corrupt_cached_text_is_recomputed() -> None:
    assert kept("x", lambda: "old") == "old"
    (file,) = (cache_folder() / "texts").iterdir()
    file.write_bytes(b"\xff\xfe\x00")
    assert kept("x", lambda: "new") == "new"
