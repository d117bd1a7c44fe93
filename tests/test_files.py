"""Files are written whole or not at all, and JSON of others is read within limits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnkit import files
from attnkit.files import MAX_DEPTH, atomic, new_folder, parse_json
from attnkit.registry import ConfigurationError


def test_a_file_appears_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.txt"
    with atomic(path) as draft:
        draft.write_text("first")
        assert not path.exists()

    def fail() -> None:
        with atomic(path) as draft:
            draft.write_text("sec")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert path.read_text() == "first"
    assert [file.name for file in path.parent.iterdir()] == ["report.txt"]


def test_a_folder_appears_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model"
    for _ in range(2):  # the second time, too
        with pytest.raises(FileNotFoundError), new_folder(path) as draft:
            (draft / "a.json").rename(draft / "missing" / "a.json")
        assert not list(path.parent.iterdir())
    with new_folder(path) as draft:
        (draft / "a.json").write_text("{}")
        assert not path.exists()
    assert [file.name for file in path.parent.rglob("*")] == ["model", "a.json"]
    with pytest.raises(ConfigurationError, match="model exists and is not an empty folder"), new_folder(path):
        raise AssertionError
    (path / "a.json").unlink()
    with new_folder(path) as draft:
        (draft / "b.json").write_text("{}")
    assert [file.name for file in path.parent.rglob("*")] == ["model", "b.json"]
    (path / "b.json").unlink()
    (link := tmp_path / "link").symlink_to(path)  # no folder can take its name
    with pytest.raises(ConfigurationError, match="link exists and is not an empty folder"), new_folder(link):
        raise AssertionError


@pytest.mark.parametrize("kind", [str, str.encode])
def test_json_beyond_limits_is_rejected(kind: Callable[[str], Any]) -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    parse_json(kind(deep))
    for text, message in [
        (f"[{deep}]", "nested deeper than 64 levels"),
        ("[" * 100_000, "nested deeper than 64 levels"),
        ("1" * 10_000, "integer string conversion"),
        (r'{"a": "\udc00"}', "a lone surrogate"),
        ("{", "Expecting property name"),
        ('[{"a": 1, "b": 2, "b": 2}]', "the key 'b' occurs more than once"),
        (f'{{"{"k" * 99}": 1, "{"k" * 99}": 2}}', r"the key 'k+\.\.\.k+' occurs more than once"),
        ("\ufeff{}", "Unexpected UTF-8 BOM"),
    ]:
        with pytest.raises(ValueError, match=message):
            parse_json(kind(text))
    with pytest.raises(ValueError, match="more than 2 lists and mappings"):
        parse_json(kind("[{}, []]"), containers=2)
    with pytest.raises(ValueError, match="utf-8"):
        parse_json(b"\xff")


def test_an_editors_lock_file_does_not_change_the_code_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Emacs marks a file with unsaved changes by a link that leads nowhere, beside it."""
    (tmp_path / "files.py").write_text("")
    monkeypatch.setattr(files, "__file__", str(tmp_path / "files.py"))
    before = files.code_version()
    (tmp_path / ".#files.py").symlink_to("user@host.1234")
    assert files.code_version() == before
    (tmp_path / "files.py").write_text("x = 1")
    assert files.code_version() != before
