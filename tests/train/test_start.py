"""The cost of starting a fit: counted, not timed."""

from pathlib import Path

import pytest

from attnkit.registry import FAMILIES, names
from tests.commands import run

HEAVY = ("pandas", "onnx", "onnxruntime", "datasets", "pyarrow", "sklearn", "IPython", "optuna", "litgpt", "x_transformers")
"""Packages that may be installed, and that training needs only if a recipe asks for them (Lightning imports torchvision by itself)."""


def test_fit_imports_no_heavy_package_its_recipe_does_not_need(tmp_path: Path) -> None:
    code = "import sys, attnkit.train.run, attnkit.task.seq2seq, attnkit.data.text_pairs; print(*sys.modules)"
    (tmp_path / "importing.py").write_text(code)
    imported = set(run("importing", cwd=tmp_path).stdout.split())  # with what a worker of a study imports
    assert "torch" in imported
    assert not {name for name in HEAVY if name in imported}
    assert not {name for name in imported if name.startswith(("attnkit.ablation", "attnkit.testing", "attnkit.catalogue"))}


def test_all_registries_look_up_plugins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(names, "entry_points", lambda group: calls.append(group) or ())
    names._points.cache_clear()
    for registry in FAMILIES:
        vars(registry).pop("plugins", None)
        registry.names()
    names._points.cache_clear()
    assert len(calls) == 1
