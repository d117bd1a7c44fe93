"""The scripts fetch what they lack, by commands that tests replace."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import fetching
import kjv
import pytest

from attnkit import ConfigurationError

Commands = list[list[str]]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Replace the commands by ones that write files."""
    ran: Commands = []

    def run(command: list[str], *, cwd: Path, check: bool) -> None:
        ran.append([*command])
        if command[:2] == ("apt-get", "download"):
            (cwd / f"{command[2]}_1.0_all.deb").touch()
        elif command[:3] == ("dpkg-deb", "-x", "words_1.0_all.deb"):
            (cwd / "usr").mkdir()
            (cwd / "usr" / "words").write_text("a")
        elif command[1:4] == ("-m", "pip", "download"):
            (cwd / "words.zip").touch()

    monkeypatch.setattr(subprocess, "run", run)
    return ran


def test_a_package_is_fetched_once_and_unpacked(commands: Commands, tmp_path: Path) -> None:
    for _ in range(2):
        assert fetching.package_file("words", "usr/words", tmp_path / "data").read_text() == "a"
    assert commands == [["apt-get", "download", "words"], ["dpkg-deb", "-x", "words_1.0_all.deb", "."]]
    with pytest.raises(ConfigurationError, match="the package other has no usr/other: it is another version"):
        fetching.package_file("other", "usr/other", tmp_path / "data")


def test_an_installed_package_is_not_fetched(commands: Commands, tmp_path: Path) -> None:
    assert fetching.package_file("python", sys.executable.removeprefix("/"), tmp_path) == Path(sys.executable)
    assert commands == []


def test_a_file_is_downloaded_once(commands: Commands, tmp_path: Path) -> None:
    for _ in range(2):
        assert fetching.downloaded("words.zip", "words==1.0", tmp_path, "--no-binary", ":all:") == tmp_path / "words.zip"
    assert [command[1:] for command in commands] == [
        ["-m", "pip", "download", "words==1.0", "--no-deps", "--no-binary", ":all:", "-d", "."]
    ]


def test_a_failing_command_raises_an_error_with_alternatives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", "apt-get")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(ConfigurationError, match=rf"'apt-get'. Get the file by other means, and put .* into {tmp_path}"):
        fetching.package_file("words", "usr/words", tmp_path)
    monkeypatch.setattr(sys, "argv", ["kjv.py", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"error: .*'apt-get'"):
        fetching.main(kjv.convert)


def test_rows_are_json_lines_written_atomically(tmp_path: Path) -> None:
    fetching.write_rows(tmp_path / "words" / "train.jsonl", [{"text": "a\nb"}, {"text": "한"}])
    lines = (tmp_path / "words" / "train.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"text": "a\nb"}, {"text": "한"}]
    assert "한" in lines[1]

    def broken() -> Any:
        yield {"text": "c"}
        raise ConfigurationError("damaged")

    with pytest.raises(ConfigurationError, match="damaged"):
        fetching.write_rows(tmp_path / "words" / "train.jsonl", broken())
    assert (tmp_path / "words" / "train.jsonl").read_text().splitlines() == lines
