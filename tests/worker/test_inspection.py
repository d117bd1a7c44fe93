"""The inspection of a variant: what is wrong, what cannot be, and sizes that are matched."""

import json
import os
import sys
from pathlib import Path

import pytest

from attnkit.train.composition import imports_of
from attnkit.worker import sources
from attnkit.worker.folder import write_json
from attnkit.worker.inspection import Inspector, main

pytestmark = pytest.mark.usefixtures("small_recipe")


def test_an_inspection_distinguishes_mistakes_from_illegal_variants() -> None:
    inspector = Inspector("tiny.yaml", match=None, baseline=[])
    wrong = inspector.answer([{"model": {"stack": {"positon": "none"}}}])
    assert wrong["kind"] == "mistake"
    assert "Did you mean 'position'?" in wrong["error"]
    assert "Did you mean 'max_epochs'?" in inspector.answer([{"trainer": {"max_epoch": 3}}])["error"]
    illegal = inspector.answer([{"model": {"stack": {"position": "rotary"}}}])
    assert illegal["kind"] == "illegal"
    assert "position 'rotary' does not work with attention 'additive'" in illegal["error"]
    fine = inspector.answer([{"model": {"stack": {"attention": "cosine"}}}])
    assert fine["notes"] == ["model.stack.attention: cosine replaces additive, so hidden_dim=4 no longer applies"]
    assert fine["takes_seed"]


def test_sizes_are_matched() -> None:
    match = {"on": "params", "adjust": "model.stack.feed_forward.ffn_dim", "tolerance": 0.01}
    inspector = Inspector("tiny.yaml", match=match, baseline=[])
    answer = inspector.answer([{"model": {"stack": {"feed_forward": "glu"}}}])
    assert abs(answer["parameters"] / inspector.target - 1) < 0.01
    assert answer["recipe"]["model"]["stack"]["feed_forward"]["ffn_dim"] == answer["adjusted"]
    assert inspector.answer([])["adjusted"] is None


def test_flops_are_matched() -> None:
    match = {"on": "flops", "adjust": "model.stack.feed_forward.ffn_dim", "tolerance": 0.05}
    mlp = {"model": {"stack": {"feed_forward": {"name": "mlp", "ffn_dim": 12}}}}
    inspector = Inspector("tiny.yaml", match=match, baseline=[mlp])
    answer = inspector.answer([{"model": {"stack": {"feed_forward": {"name": "glu", "ffn_dim": 12}}}}])
    assert answer["adjusted"] == 8  # three matrices in the place of two
    assert answer["flops"] == inspector.target
    deep = inspector.answer([mlp, {"model": {"stack": {"num_layers": 2}}}])
    assert deep["kind"] == "illegal"
    assert "model.stack.feed_forward.ffn_dim=1 comes closest, but is still +" in deep["error"]


def test_modules_may_print_and_treat_stdout_as_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "noisy_module", None)
    monkeypatch.delitem(sys.modules, "noisy_module")
    Path("noisy_module.py").write_text("import sys\nsys.stdout.reconfigure(line_buffering=True)\nsys.stdout.fileno()\nprint('hello')\n")
    composition = {"imports": ["noisy_module"]}
    write_json(Path("job.json"), {"recipe": "tiny.yaml", "match": None, "baseline": composition, "compositions": [composition]})
    assert main(Path()) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["recipe"]["imports"] == ["noisy_module"]


def test_an_answer_lists_the_sources_of_an_installed_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.setattr(sources, "OTHERS", (*sources.OTHERS, f"{tmp_path / 'site'}{os.sep}"))  # as if it were installed there
    for name in ("installed_plugin", "installed_library"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "site").mkdir()
    plugin, library = (tmp_path / "site" / f"installed_{kind}.py" for kind in ("plugin", "library"))
    plugin.write_text("import installed_library\n")
    library.write_text("")
    composition = {"imports": ["installed_plugin"]}
    write_json(Path("job.json"), {"recipe": "tiny.yaml", "match": None, "baseline": composition, "compositions": [composition]})
    assert main(Path()) == 0
    assert {str(plugin)} == json.loads(capsys.readouterr().out)["sources"].keys() & {str(plugin), str(library)}


def test_imports_may_be_null(capsys: pytest.CaptureFixture[str]) -> None:
    Path("null.yaml").write_text("imports:\n" + Path("tiny.yaml").read_text())
    write_json(Path("job.json"), {"recipe": "null.yaml", "match": None, "baseline": {}, "compositions": [{}]})
    assert main(Path()) == 0
    assert "error" not in json.loads(capsys.readouterr().out)


def test_values_may_be_paths_of_objects_that_are_no_classes() -> None:
    assert imports_of({"model": {"name": "mine"}, "data": {"corpus": {"columns": ["string.digits", "os.path"]}}}) == []
