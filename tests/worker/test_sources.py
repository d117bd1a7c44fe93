"""Digests of the modules that a run has imported: where Python finds them, under one name, and only of what is not installed."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from attnkit.worker.sources import imported


def test_a_module_with_aliases_is_recorded_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "its_own_name.py").touch()
    spec = spec_from_file_location("its_own_name", tmp_path / "its_own_name.py")
    assert spec is not None
    monkeypatch.setitem(sys.modules, "another.name", module_from_spec(spec))
    found = imported((), generated="/nowhere")
    assert "its_own_name" in found
    assert "another.name" not in found


WATCHING = """
import sys, time
from pathlib import Path
import attnkit.worker
time.sleep(0.1)
Path("early.py").write_text("x = 1")
sys.path.insert(0, "")
import early
from attnkit.worker.sources import imported_digest, own_sources, unchanged, watch_imports
watch_imports()
for name in ("kept", "edited"):
    Path(f"{name}.py").write_text("x = 1")
import edited, kept
Path("edited.py").write_text("x = 12")
found = [imported_digest(module.__file__) for module in (early, kept, edited)]
print([digest.startswith("unknown, then ") for digest in found], unchanged(own_sources()))
Path("edited.py").write_text("x = 1")
"""


def test_a_module_edited_before_hashing_has_unknown_content(tmp_path: Path) -> None:
    """The first file is written after the process has begun, and imported before imports are watched."""
    done = subprocess.run([sys.executable, "-c", WATCHING], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "[True, False, True] False\n", done.stderr
