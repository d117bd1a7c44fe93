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


WRONG = {
    "attention/additive.py": "attnkit.position.none",
    "layers/multi_head.py": "attnkit.models.compose",
    "data/base.py": "attnkit.task.base",
    "models/base.py": "lightning",
    "registry/base.py": "torch",
}


@pytest.mark.slow
def test_the_layer_check_finds_each_wrong_import(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    for file, module in WRONG.items():
        with (folder / "attnkit" / file).open("a", encoding="utf-8") as source:
            source.write(f"\nimport {module}\n")
    done = lint(folder)
    assert done.returncode != 0
    for file, module in WRONG.items():
        assert f"attnkit.{file.removesuffix('.py').replace('/', '.')} -> {module} " in done.stdout


@pytest.mark.slow
def test_the_layer_check_finds_a_module_without_a_layer(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    (folder / "attnkit/somewhere_else.py").write_text("import torch\n", encoding="utf-8")
    done = lint(folder)
    assert done.returncode != 0
    assert "somewhere_else" in done.stdout


def test_names_are_known_without_torch() -> None:
    statements = (
        "import attnkit",
        "attnkit.attentions.names(); attnkit.optimizers.names(); repr(attnkit.stacks); 'cmudict' in attnkit.corpora",
        "from attnkit.cli.main import main; main(['--version'])",
        "main(['--help'])",
        "main(['list'])",
        "main(['list', 'attentions'])",
    )
    heavy = "sorted({'torch', 'lightning', 'numpy', 'jsonargparse'} & set(sys.modules))"
    code = "import json, sys\nfound = []\n" + "".join(f"{statement}\nfound.append({heavy})\n" for statement in statements)
    done = subprocess.run([sys.executable, "-c", f"{code}print('\\n' + json.dumps(found))"], capture_output=True, text=True, check=True)
    assert dict(zip(statements, json.loads(done.stdout.splitlines()[-1]), strict=True)) == {statement: [] for statement in statements}


def test_modules_that_need_torch_are_imported_on_first_use() -> None:
    seen = "print('torch' in sys.modules)"
    both = "print({'compose', 'record_attention'} <= {*dir(attnkit)})"
    code = f"import sys, attnkit; {seen}; attnkit.compose; {seen}; attnkit.record_attention; {both}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]
