"""The files behind a user's class, and their hash, which does not depend on where they lie or on what else is imported."""

import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

from attnkit import attentions, norms, own_code


@pytest.fixture(autouse=True)
def files_are_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if this process began after the code was written; its modules are forgotten at the end."""
    monkeypatch.setattr(own_code, "_BEGAN", sys.maxsize)
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


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
        return own_code.code_hash(import_module("halving").Halved)


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


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> ModuleType:
    """Write modules to a folder, and import the first of them."""
    folder.mkdir(exist_ok=True)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    name = next(iter(modules))
    monkeypatch.delitem(sys.modules, name, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)


def test_a_file_in_the_current_folder_counts_only_if_it_would_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash differed between folders: a checkpoint that was loaded in another one warned of changed code."""
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from elsewhere_utils import Thing\nclass Own:\n    pass\n"
    own = written(tmp_path / "a", monkeypatch, typed=text).Own
    (tmp_path / "elsewhere_utils.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    assert own_code.source_files(own) == ({tmp_path / "a/typed.py"}, {"typing"})


def test_imports_are_followed_whatever_python_warns_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equations often have invalid escapes; where warnings are errors, as here, the imports of such a file did not count."""
    own = written(tmp_path / "a", monkeypatch, escaping='"""$\\softmax$"""\nimport scaling\nclass Own:\n    pass\n', scaling="x = 1\n").Own
    found = own_code.source_files(own)
    assert found is not None
    assert {file.name for file in found[0]} == {"escaping.py", "scaling.py"}


def test_a_relative_import_beyond_the_root_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"try:\n    from {'.' * 99} import x\nexcept ImportError:\n    pass\nclass Own:\n    pass\n"
    assert own_code.source_files(written(tmp_path / "a", monkeypatch, rootless=text).Own) == ({tmp_path / "a/rootless.py"}, set())


def test_an_own_module_may_have_the_name_of_one_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as Python's: its hash was that of nothing, so no change was ever noticed."""
    own = written(tmp_path / "a", monkeypatch, antigravity="class Own:\n    pass\n").Own
    assert own_code.source_files(own) == ({tmp_path / "a/antigravity.py"}, set())


def test_a_function_that_is_registered_has_a_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving a checkpoint of a model with such a component raised an AttributeError."""
    assert own_code.code_hash(written(tmp_path / "a", monkeypatch, making="def make():\n    pass\n").make) is not None


def test_unreadable_code_has_no_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint that would have it could not be saved."""
    own = written(tmp_path / "a", monkeypatch, unreadable="class Own:\n    pass\n").Own
    monkeypatch.setattr(Path, "read_bytes", lambda path: Path("/nowhere").stat())
    assert own_code.code_hash(own) is None


def test_files_that_changed_after_the_process_began_have_no_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_code, "_BEGAN", 0)
    assert code_of(tmp_path / "a", monkeypatch, kept=1) is None


def test_code_of_attnkit_and_of_packages_has_no_hash() -> None:
    assert own_code.code_hash(norms.get("rms_norm")) is own_code.code_hash(attentions.get("additive")) is own_code.code_hash(Path) is None


def test_a_compiled_module_takes_precedence_over_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "half_compiled"
    package.mkdir()
    for name in ("__init__.py", "part.py", compiled := f"part{EXTENSION_SUFFIXES[0]}"):
        (package / name).touch()
    assert own_code.source_of("half_compiled.part") == package / compiled
    assert own_code.source_of("half_compiled") == package / "__init__.py"
