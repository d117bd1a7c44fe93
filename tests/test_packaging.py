"""Contents of the wheel and of the source distribution, and declared dependencies."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
owners_of = cache(packages_distributions)
USED = ["ablate", "bench", "data", "images", "plot", "slurm", "ray", "fla", "triton", "tune"]  # the extras for users


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def required(requirements: list[str]) -> set[str]:
    """Return the names of distributions in a list of requirements."""
    return {normal(re.match(r"[\w.-]+", r)[0]) for r in requirements}


def recipes() -> list[str]:
    return [p.relative_to(ROOT).as_posix() for p in (ROOT / "recipes").rglob("*.yaml")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution, and the wheel from it, without a network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_wheel_contains_the_package_types_license_and_all_recipes(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / "attnkit").rglob("*.py")}
    assert sources <= names
    assert "attnkit/py.typed" in names
    assert recipes(), "there must be recipes"
    assert {f"attnkit/{recipe}" for recipe in recipes()} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if not name.startswith(("attnkit/", "attnkit-"))]


@pytest.mark.slow
def test_the_wheels_description_has_no_relative_links(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    opened = zipfile.ZipFile(wheel)
    [metadata] = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
    fields, _, text = opened.read(metadata).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in fields
    assert text.startswith("# attnkit\n")
    assert "attnkit fit --config g2p/transformer" in text
    targets = re.findall(r"\]\(([^()\s]*)\)|^\[[^\]]+\]: *(\S+)|(?:src|href)=[\"']([^\"']*)", text, re.MULTILINE)
    assert [t for target in targets for t in target if t and not t.startswith(("https://", "http://", "#"))] == []
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](docs/" in readme  # so this test sees links
    for words in ("Layers may differ from each other, or share parameters", "Working on attnkit".lower(), "changes"):
        assert words in re.sub(r"\s+", " ", text)


@pytest.mark.slow
def test_the_source_distribution_contains_everything_to_build_and_test(built: Path) -> None:
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "mkdocs.yml", *recipes()} <= names
    assert {"attnkit/registry/base.py", "scripts/kjv.py", "tests/test_packaging.py", "docs/index.md"} <= names


@pytest.mark.slow
def test_an_installed_wheel_finds_its_recipes_by_short_name_and_states_its_version(built: Path, tmp_path: Path) -> None:
    [wheel] = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    short = recipes()[0].removeprefix("recipes/").removesuffix(".yaml")
    code = f"import attnkit; from attnkit.recipe import find_recipe; print(attnkit.__file__, find_recipe({short!r}))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    package, recipe = map(Path, done.stdout.split())
    assert package.is_relative_to(tmp_path)
    assert recipe == tmp_path / "attnkit" / recipes()[0]
    import attnkit

    assert wheel.name.startswith(f"attnkit-{attnkit.__version__}-")


def imported(folder: Path) -> set[str]:
    """Return the top-level modules that the files in `folder` import."""
    found: set[str] = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"attnkit", "tests"}


@pytest.mark.parametrize(
    ("folder", "extras"),
    [("attnkit", USED), ("tests", [*USED, "dev"]), ("docs", ["ablate", "bench", "data", "plot", "dev"])],
)
def test_every_import_is_a_declared_dependency(folder: str, extras: list[str]) -> None:
    declared = required(PROJECT["dependencies"]).union(*(required(PROJECT["optional-dependencies"][e]) for e in extras))
    behind = {"fla": "fla-core", "mkdocs": "mkdocs-material", "griffe": "mkdocstrings", "grimp": "import-linter"}
    ours = [*(ROOT / folder).rglob("*"), *(ROOT / "docs/_tools").iterdir(), *(ROOT / "scripts").iterdir()]  # tests import tools and scripts
    here = {path.stem for path in ours if path.is_dir() or path.suffix == ".py"} | {
        "published",
        "stranger_model",
        "tests",
    }  # tables of tests/, which a page shows; a module that a test writes; the tests, whose hostile files a tool reads
    # attnkit imports pytest only inside functions for tests; litgpt demands an older jsonargparse, so no extra can name it
    for module in imported(ROOT / folder) - here - {"pytest", "litgpt"}:
        owners = {normal(behind.get(module, d)) for d in owners_of().get(module, [module])}
        assert owners & declared, f"{folder} imports {module}, of {owners}, which pyproject.toml does not declare"


def test_pre_commit_and_ci_use_the_same_ruff() -> None:
    (revision,) = re.findall(r"rev: v([\d.]+)", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert f"\nruff=={revision}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_constraints_pin_every_direct_dependency_without_local_versions() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    pinned = {normal(line.partition("==")[0]) for line in lines}
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    direct = required(PROJECT["dependencies"]).union(*map(required, PROJECT["optional-dependencies"].values()))
    assert direct - {"attnkit"} <= pinned
