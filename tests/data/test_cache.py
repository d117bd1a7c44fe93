import atexit
import errno
import importlib
import json
import os
import shutil
import stat
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from attnkit import ConfigurationError, own_code, tokenizers
from attnkit.data import cache
from attnkit.data.cache import cached, sources, trained
from attnkit.data.text_pairs import TextPairs
from attnkit.files import cache_folder
from attnkit.tokenizer import Tokenizer, bpe

BPE = {"name": "bpe", "vocab_size": 270}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*"))


class Counted:
    """Texts, and how often they were read."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.count = 0

    def __call__(self) -> Iterator[str]:
        self.count += 1
        return iter(self.texts)


def random_text(rng: np.random.Generator) -> str:
    return " ".join("".join(rng.choice(list("abcde"), size=rng.integers(1, 6))) for _ in range(60))


def test_a_tokenizer_is_trained_once_for_equal_texts_and_settings(rng: np.random.Generator, own_cache: Path) -> None:
    text = random_text(rng)
    first, again = Counted(text), Counted(text)
    made, found = (trained(tokenizers.build(BPE), texts) for texts in (first, again))
    assert (first.count, again.count) == (2, 1)  # for the hash, and to train
    assert made.spec == found.spec == tokenizers.build(BPE).train([text]).spec
    assert len(entries(own_cache)) == 1


def test_changed_texts_or_settings_retrain_the_tokenizer(rng: np.random.Generator, own_cache: Path) -> None:
    text = random_text(rng)
    specs = [
        trained(tokenizers.build(spec), Counted(*texts)).spec
        for spec, texts in (
            (BPE, [text]),
            (BPE, [text, "x"]),
            (BPE, [text[:9], text[9:]]),
            ({**BPE, "vocab_size": 271}, [text]),
            ({**BPE, "normalization": "none"}, [text]),
        )
    ]
    assert len(entries(own_cache)) == 5
    assert specs[0] != specs[3]


@pytest.mark.parametrize("place", ["code", "elsewhere"])
def test_changed_code_retrains_the_tokenizer(place: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a module which the one of the class imports: a repeated run would get the tokenizer of the code before."""
    monkeypatch.setattr(own_code, "_BEGAN", sys.maxsize)  # as if this process began after the code was written
    for folder in {"code", place}:
        (tmp_path / folder).mkdir()
        monkeypatch.syspath_prepend(tmp_path / folder)
    (tmp_path / "code/shortened.py").write_text(
        "from kept import KEPT\nfrom attnkit.tokenizer.bpe import BPE\nclass Short(BPE):\n    pass\n"
    )
    (tmp_path / "code/draft.py").write_text("not python\n")
    for kept in (1, 2, 2):
        (tmp_path / place / "kept.py").write_text(f"KEPT = {kept}\n")
        for name in ("shortened", "kept"):
            sys.modules.pop(name, None)
        trained(importlib.import_module("shortened").Short(vocab_size=270), Counted("some text"))
    assert len(entries(own_cache)) == 2


def test_changed_code_that_is_imported_by_a_relative_name_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_code, "_BEGAN", sys.maxsize)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "cutters/own").mkdir(parents=True)
    (tmp_path / "cutters/own/a.py").write_text("from .. import rules\nfrom attnkit.tokenizer.bpe import BPE\nclass Cut(BPE):\n    pass\n")
    (tmp_path / "cutters/rules.py").write_text("from .depths.kept import KEPT\n")
    (tmp_path / "cutters/depths").mkdir()
    found = set()
    for kept in (1, 2, 2):
        (tmp_path / "cutters/depths/kept.py").write_text(f"KEPT = {kept}\n")
        for name in [name for name in sys.modules if name.startswith("cutters")]:
            monkeypatch.delitem(sys.modules, name)
        found.add(sources(importlib.import_module("cutters.own.a").Cut))
    assert len(found) == 2


def test_the_code_of_a_class_in_an_archive_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("archived.py", "from attnkit.tokenizer.bpe import BPE\nclass Archived(BPE):\n    pass\n")
    monkeypatch.setattr(own_code, "_BEGAN", sys.maxsize)
    monkeypatch.syspath_prepend(tmp_path / "code.zip")
    assert sources(importlib.import_module("archived").Archived).startswith("unknown")


def short(kept: int) -> type[bpe.BPE]:
    """Return a class whose tokenizers learn from the first characters of a text only."""

    class Short(bpe.BPE):
        def train(self, texts: Iterable[str]) -> Self:
            return super().train(text[:kept] for text in texts)

    Short.__module__ = "cells"  # as one that was defined in a notebook, whose cells are no file
    return Short


def test_code_that_may_not_be_what_the_files_contain_is_never_found_in_the_cache(
    rng: np.random.Generator, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class from a cell of a notebook that was edited and run again, and a module edited after it was imported."""
    text = random_text(rng)
    for kept in (len(text), 3):
        assert trained(short(kept)(vocab_size=270), Counted(text)).spec == short(kept)(vocab_size=270).train([text]).spec
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "edited_late.py").write_text("from attnkit.tokenizer.bpe import BPE\nclass Edited(BPE):\n    pass\n")
    assert sources(importlib.import_module("edited_late").Edited).startswith("unknown")
    made, ends = len(entries(own_cache)), []
    monkeypatch.setattr(atexit, "register", lambda *call: ends.append(call))
    trained(sys.modules["edited_late"].Edited(vocab_size=270), Counted(text))
    assert len(entries(own_cache)) == made + 1
    for function, *arguments in ends:
        function(*arguments)
    assert len(entries(own_cache)) == made


def test_a_new_version_of_an_imported_package_retrains_the_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_code, "_BEGAN", sys.maxsize)
    monkeypatch.setattr(own_code, "INSTALLED", (f"{tmp_path / 'packages'}{os.sep}",))
    monkeypatch.setattr(own_code, "OTHERS", (*own_code.OTHERS, *own_code.INSTALLED))
    monkeypatch.setattr(cache, "distributions", packages_distributions)  # not those of before the test
    found = set()
    for release in ("1.0", "1.1", "1.1"):
        shutil.rmtree(tmp_path / "packages", ignore_errors=True)
        described = tmp_path / "packages/cutter.dist-info"
        described.mkdir(parents=True)
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: cutter\nVersion: {release}\n")
        (described / "top_level.txt").write_text("cutter\n")
        (tmp_path / "packages/cutter.py").write_text("")
        (tmp_path / "cutting.py").write_text("import cutter\nfrom attnkit.tokenizer.bpe import BPE\nclass Cut(BPE):\n    pass\n")
        for folder in (tmp_path, tmp_path / "packages"):
            monkeypatch.syspath_prepend(folder)
        for name in ("cutter", "cutting"):
            sys.modules.pop(name, None)
        found.add(sources(importlib.import_module("cutting").Cut))
    assert len(found) == 2


def test_texts_that_change_while_they_are_read_leave_no_entry(rng: np.random.Generator, own_cache: Path) -> None:
    """Otherwise, the entry of the old text would hold the new one, and a run with the old text again would read it."""
    reads = iter([[random_text(rng)] for _ in range(2)])
    with pytest.raises(ConfigurationError, match="the texts changed while they were read"):
        trained(tokenizers.build(BPE), lambda: next(reads))
    assert entries(own_cache) == []


def test_a_full_folder_is_reported_with_advice(own_cache: Path) -> None:
    def write(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ConfigurationError, match=r"is full .*set ATTNKIT_CACHE to another folder"):
        cached("things", 1, write=write, read=Path.exists)
    assert entries(own_cache) == []


def test_counting_tokenizers_are_not_cached_and_trained_ones_not_retrained(own_cache: Path) -> None:
    texts = Counted("a b")
    assert len(trained(tokenizers.build("word"), texts)) == 6
    assert texts.count == 1
    tokenizer = tokenizers.build(BPE).train(["ab"])
    assert trained(tokenizer, texts) is tokenizer
    assert not own_cache.exists()


def test_the_tokenizers_of_pairs_are_cached(tmp_path: Path, own_cache: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("ab\tAB\nabc\tABC\n")
    specs = [TextPairs(corpus=str(path), src_tokenizer=BPE, tgt_tokenizer=None).src_tokenizer_spec for _ in range(2)]
    assert specs[0] == specs[1] == tokenizers.build(BPE).train(["ab", "AB", "abc", "ABC"]).spec
    assert len(entries(own_cache)) == 1


@pytest.mark.parametrize("content", ["", "{", '{"name": "bpe"}', '{"name": "bpe", "model": "x"}'])
def test_a_damaged_entry_is_rebuilt_with_a_warning(content: str, own_cache: Path) -> None:
    spec = trained(tokenizers.build(BPE), Counted("abab")).spec
    (entry,) = entries(own_cache)
    (entry / "spec.json").write_text(content)
    with pytest.warns(UserWarning, match="is damaged .* will be rebuilt"):
        assert trained(tokenizers.build(BPE), Counted("abab")).spec == spec
    assert json.loads((entry / "spec.json").read_text()) == spec


def test_a_half_written_entry_is_never_read(own_cache: Path) -> None:
    def stop(folder: Path) -> None:
        (folder / "half").write_text("a")
        raise KeyboardInterrupt

    def read(folder: Path) -> str:
        return (folder / "whole").read_text()

    with pytest.raises(KeyboardInterrupt):
        cached("things", [1], write=stop, read=read)
    assert entries(own_cache) == []
    assert cached("things", [1], write=lambda folder: write_whole(folder, "a"), read=read) == "a"
    assert cached("things", [1], write=stop, read=read) == "a"


def write_whole(folder: Path, text: str) -> None:
    (folder / "whole").write_text(text)


def test_the_entry_of_a_faster_process_is_used(own_cache: Path) -> None:
    def read(folder: Path) -> str:
        return (folder / "whole").read_text()

    def slow(folder: Path) -> None:
        cached("things", 1, write=lambda other: write_whole(other, "fast"), read=read)
        write_whole(folder, "slow")

    assert cached("things", 1, write=slow, read=read) == "fast"
    assert len(list((own_cache / "things").iterdir())) == 1


@pytest.mark.filterwarnings("ignore:the cache entry .* is damaged:UserWarning")
@pytest.mark.parametrize("removed", ["damaged", "good"])
def test_processes_that_find_one_damaged_entry_do_not_disturb_each_other(removed: str, own_cache: Path) -> None:
    """Another process, which has found the same, removes the entry that this one is reading."""
    others = [shutil.rmtree]

    def read(folder: Path) -> str:
        text = (folder / "whole").read_text()
        if text == removed and others:
            others.pop()(folder)
        if (folder / "whole").read_text() == "damaged":
            raise ValueError(text)
        return text

    cached("things", 1, write=lambda folder: write_whole(folder, "damaged"), read=Path.exists)
    assert cached("things", 1, write=lambda folder: write_whole(folder, "good"), read=read) == "good"
    assert len(list((own_cache / "things").iterdir())) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_an_unwritable_folder_is_rejected_with_advice(own_cache: Path) -> None:
    own_cache.mkdir()
    own_cache.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(ConfigurationError, match="set ATTNKIT_CACHE to a writable folder"):
        trained(tokenizers.build(BPE), Counted("a"))


def test_a_file_in_place_of_the_folder_is_rejected_with_advice(own_cache: Path) -> None:
    own_cache.write_text("")
    with pytest.raises(ConfigurationError, match="set ATTNKIT_CACHE to a writable folder"):
        trained(tokenizers.build(BPE), Counted("a"))


def test_the_folder_defaults_to_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTNKIT_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/attnkit")


def test_a_cached_tokenizer_equals_a_fresh_one(rng: np.random.Generator) -> None:
    text = random_text(rng)
    fresh: Tokenizer = tokenizers.build(BPE).train([text])
    found = [trained(tokenizers.build(BPE), Counted(text)) for _ in range(2)][1]
    assert found.encode(text) == fresh.encode(text)
