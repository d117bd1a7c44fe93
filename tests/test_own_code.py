"""The files behind a user's class, and their hash, which does not depend on where they lie or on what else is imported."""

import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from attnkit import attentions, norms, own_code


@pytest.fixture(autouse=True)
def files_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_code, "_BEGAN", sys.maxsize)  # as if this process began after the code was written


def code_of(folder: Path, monkeypatch: pytest.MonkeyPatch, *, kept: int, beside: str = "") -> str | None:
    """Return the hash of a class in `folder` that is imported anew; it imports a constant within a function."""
    folder.mkdir(exist_ok=True)
    halving = "class Halved:\n    def __call__(self, x):\n        import factors\n        return factors.KEPT * x\n"
    (folder / "halving.py").write_text(halving)
    (folder / "factors.py").write_text(f"import numpy\nKEPT = {kept}\n")
    (folder / "beside.py").write_text(beside)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        for name in ("halving", "factors"):
            sys.modules.pop(name, None)
        return own_code.own_code(import_module("halving").Halved)


def test_the_hash_is_that_of_the_files_that_the_class_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = code_of(tmp_path / "a", monkeypatch, kept=1)
    assert found is not None
    assert code_of(tmp_path / "elsewhere", monkeypatch, kept=1, beside="x = 1") == found
    assert code_of(tmp_path / "a", monkeypatch, kept=2) not in (None, found)


def test_the_imported_module_counts_not_one_of_its_name_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path / "a")
    assert code_of(tmp_path / "a", monkeypatch, kept=1) is not None
    sys.modules.pop("halving")
    halved = import_module("halving").Halved
    import_module("factors")
    (tmp_path / "factors.py").write_text("KEPT = 3\n")
    monkeypatch.chdir(tmp_path)
    found = own_code.source_files(halved)
    assert found is not None
    assert {file.parent for file in found[0] if file.name == "factors.py"} == {tmp_path / "a"}


def test_files_that_changed_after_the_process_began_have_no_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_code, "_BEGAN", 0)
    assert code_of(tmp_path / "a", monkeypatch, kept=1) is None


def test_code_of_attnkit_and_of_packages_has_no_hash() -> None:
    assert own_code.own_code(norms.get("rms_norm")) is own_code.own_code(attentions.get("additive")) is own_code.own_code(Path) is None


def test_a_compiled_module_takes_precedence_over_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "half_compiled"
    package.mkdir()
    for name in ("__init__.py", "part.py", compiled := f"part{EXTENSION_SUFFIXES[0]}"):
        (package / name).touch()
    assert own_code.source_of("half_compiled.part") == package / compiled
    assert own_code.source_of("half_compiled") == package / "__init__.py"
