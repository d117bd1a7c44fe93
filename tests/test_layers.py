"""The layers of the package, and what starts without torch."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(is_debug_mode=False, cache_dir=None))"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the layer check on the package in `folder`."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); {LINT}"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def copy(folder: Path) -> Path:
    shutil.copytree(ROOT / "attnkit", folder / "attnkit", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_every_package_imports_only_from_layers_below_it() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("attention/additive.py", "import attnkit.position.none"),
        ("layers/multi_head.py", "import attnkit.models.compose"),
        ("data/base.py", "import attnkit.task.base"),
        ("models/base.py", "import lightning"),
        ("registry/base.py", "import torch"),
        ("somewhere_else.py", "import torch"),
    ],
)
def test_the_layer_check_finds_a_wrong_import(file: str, line: str, tmp_path: Path) -> None:
    folder = copy(tmp_path)
    source = folder / "attnkit" / file
    source.write_text((source.read_text(encoding="utf-8") if source.exists() else "") + f"\n{line}\n", encoding="utf-8")
    done = lint(folder)
    assert done.returncode != 0, done.stdout


@pytest.mark.parametrize(
    "statement",
    [
        "import attnkit",
        "import attnkit; attnkit.attentions.names(); attnkit.optimizers.names(); repr(attnkit.stacks); 'cmudict' in attnkit.corpora",
        "from attnkit.cli.main import main; main(['--version'])",
        "from attnkit.cli.main import main; main(['--help'])",
        "from attnkit.cli.main import main; main(['list'])",
        "from attnkit.cli.main import main; main(['list', 'attentions'])",
    ],
)
def test_names_are_known_without_torch(statement: str) -> None:
    heavy = "{'torch', 'lightning', 'numpy', 'jsonargparse'}"
    code = f"{statement}\nimport sys, json\nprint('\\n' + json.dumps(sorted({heavy} & set(sys.modules))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize("name", ["compose", "record_attention"])
def test_what_needs_torch_is_imported_on_first_use(name: str) -> None:
    seen = "print('torch' in sys.modules)"
    code = f"import sys, attnkit; {seen}; attnkit.{name}; {seen}; print({name!r} in dir(attnkit))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]
