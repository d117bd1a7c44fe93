"""Modules that are named under `imports`."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnkit
from attnkit.recipe import merge, read_layers
from attnkit.registry import ConfigurationError, import_modules


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with modules, which are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "of_mine").mkdir()
    (tmp_path / "of_mine/inner.py").write_text("import attnkit\n@attnkit.norms.register('of_mine')\nclass Norm: ...\n")
    (tmp_path / "of_mine_broken.py").write_text("x = 1\nraise RuntimeError('boom')\n")
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("of_mine")]:
        del sys.modules[name]
    attnkit.norms._classes.pop("of_mine", None)


def test_a_module_of_the_current_folder_registers_its_components() -> None:
    import_modules(["of_mine.inner"])
    assert "of_mine" in attnkit.norms
    import_modules(["of_mine.inner"])  # again, which changes nothing
    assert sys.path.count(os.getcwd()) == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["of_mine.other"],
            "imports: there is no module 'of_mine.other': is it installed, or is its folder the current one or in PYTHONPATH",
        ),
        (["of_mine_broken"], r"'of_mine_broken' in imports cannot be imported: RuntimeError: boom \(.*of_mine_broken.py:2\)"),
        (["of_mine/inner.py"], "imports must list modules, .* but contains 'of_mine/inner.py': write the dotted name, without .py"),
        (["inner.py"], "without .py"),
        ("of_mine.inner", r"imports must be a list of module names, as in \[of_mine.inner\]"),
        ([["of_mine"]], "imports must list modules"),
        ([1], "imports must list modules"),
    ],
)
def test_failed_imports_are_reported(names: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        import_modules(names)


def test_the_imports_of_all_layers_are_joined_in_order() -> None:
    dropped: list[str] = []
    merged = merge({"imports": ["b", "a"], "model": "x"}, {"imports": ["c", "a"]}, dropped=dropped)
    assert merged == {"imports": ["b", "a", "c"], "model": "x"}
    assert dropped == []
    assert merge({}, {"imports": ["a"]}, dropped=[]) == {"imports": ["a"]}


def test_reading_recipes_imports_modules_of_the_recipes_and_the_caller(folder: Path) -> None:
    (folder / "of_mine_too.py").write_text("")
    (folder / "a.yaml").write_text("imports: [of_mine.inner]")
    assert read_layers(["a.yaml"], imports=["of_mine_too"]) == [{"imports": ["of_mine.inner"]}]
    assert {"of_mine.inner", "of_mine_too"} <= set(sys.modules)
    (folder / "a.yaml").write_text("imports: of_mine.inner")
    with pytest.raises(ConfigurationError, match="must be a list"):
        read_layers(["a.yaml"])
