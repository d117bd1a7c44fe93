import hashlib
import platform
import subprocess
from pathlib import Path

import pytest
import torch

from attnkit.cpp import compiler, load

pytestmark = pytest.mark.skipif(not compiler(), reason="there is no C++ compiler")

SOURCE = 'extern "C" int three() { return 3; }'


def three() -> int:
    return int(load("three", SOURCE).three())


def failing(folder: Path) -> str:
    """Write a compiler that fails into a folder, and return its path."""
    folder.mkdir(exist_ok=True)
    script = folder / "broken"
    script.write_text("#!/bin/sh\nprintf 'no such header \\351\\n' >&2\nexit 1\n")  # not UTF-8
    script.chmod(0o755)
    return str(script)


def compile_for(capability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for these instructions, or skip the test if the processor does not have them."""
    own, known = torch.backends.cpu.get_cpu_capability(), ("DEFAULT", "AVX2", "AVX512")
    if capability != "DEFAULT" and (own not in known or known.index(own) < known.index(capability)):
        pytest.skip(f"the processor has no {capability}")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_failing_compiler_is_an_error_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", failing(tmp_path))
    with pytest.raises(OSError, match=r"^no such header \ufffd$"):
        three()


def test_without_a_compiler_there_is_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(OSError, match=r"there is no C\+\+ compiler"):
        three()


def test_compiled_code_is_kept(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert three() == 3
    [kept] = own_cache.iterdir()
    with monkeypatch.context() as other:
        other.setattr(subprocess, "run", None)
        assert three() == 3
    whole = kept.read_bytes()
    kept.unlink()  # the file that is in use must not change
    for damaged in (b"", whole[:1000], whole[:-1], whole.replace(b"three", b"threw")):
        kept.write_bytes(damaged)
        assert three() == 3
        assert kept.read_bytes()[-32:] == hashlib.sha256(kept.read_bytes()[:-32]).digest()


def test_code_that_cannot_be_kept_is_compiled_for_the_process(own_cache: Path) -> None:
    own_cache.write_text("not a folder")
    assert three() == 3


def test_code_is_kept_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", ".")
    monkeypatch.chdir(tmp_path)
    three()
    monkeypatch.setattr(subprocess, "run", None)
    assert three() == 3


def test_code_is_compiled_for_the_process_if_no_home_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", "~a-user-who-does-not-exist/cache")
    assert three() == 3


def test_a_compiler_may_have_arguments_but_not_for_this_processor_alone(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = compiler()
    for arguments in ("", " -march=native -Wall"):
        monkeypatch.setenv("CXX", " ".join(plain) + arguments)
        assert compiler() == (*plain, *arguments.split())
        three()
    kept = {file.read_bytes() for file in own_cache.iterdir()}
    assert len([*own_cache.iterdir()]) == 2
    assert len(kept) == 1 or platform.machine() != "x86_64"


def test_the_path_of_a_compiler_may_contain_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", path := failing(tmp_path / "my tools"))
    assert compiler() == (path,)
    monkeypatch.setenv("CXX", f"{path} --quiet 'unbalanced")
    assert compiler() == ()


def test_other_sources_and_flags_are_other_code(own_cache: Path) -> None:
    assert three() == 3
    assert load("three", SOURCE.replace("return 3", "return 4")).three() == 4
    assert load("three", SOURCE.replace("return 3", "return N"), "-DN=5").three() == 5
    assert load("three", SOURCE.replace("return 3", "return N"), "-DN=6").three() == 6
    assert len([*own_cache.iterdir()]) == 4
