"""Every way one package of attnkit starts another: imports (also for type checking), names in strings, `python -m`."""

import ast
import re
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]

LAZY = {
    "attnkit": "compose and record_attention import torch, so they are imported when they are used",
    "attnkit.registry.families": "a registry names the package of a family, whose modules are imported when their names are used",
}
"""Modules whose strings may name packages above their own, with the reason."""

DYNAMIC = {
    "attnkit": LAZY["attnkit"],
    "attnkit.registry.names": LAZY["attnkit.registry.families"],
    "attnkit.registry.class_path": "a class path of the user's",
    "attnkit.worker.job": "one of the worker modules that it names",
    "attnkit.worker.warm": "the server that it names",
    "attnkit.worker.server": "the modules that it names, and the worker that a job names",
}
"""Modules that import or start a module whose name is not written where that happens, with the reason."""

TYPES = "for annotations alone"
KNOWN = {
    ("attnkit.attention.backend.base", "attnkit.attention.base"): TYPES,
    ("attnkit.registry.arguments", "attnkit.registry.base"): TYPES,
    ("attnkit.registry.resolved", "attnkit.registry.base"): TYPES,
    ("attnkit.task.transfer", "attnkit.task.base"): TYPES,
}
"""The arrows that close a circle, with the reason. No other one may come."""


def module_of(file: Path, package: Path) -> str:
    return ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def named(text: str, modules: set[str]) -> set[str]:
    """Return the modules that a text names, also by a class in them."""
    found = set()
    for path in re.findall(r"\battnkit(?:\.\w+)+", text):
        while path not in modules:
            path = path.rpartition(".")[0]
        found.add(path)
    return found - {"attnkit"}


def strings(tree: ast.Module) -> list[str]:
    """Return the strings of a module that are not documentation."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in prose]


def is_dynamic(node: ast.AST) -> bool:
    """Return whether code imports a module, or starts one by `python -m`, whose name is not a string that stands there."""
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return called in ("import_module", "__import__", "run_module") and not isinstance(node.args[0], ast.Constant)
    if isinstance(node, ast.List):
        after = [b for a, b in zip(node.elts, node.elts[1:], strict=False) if isinstance(a, ast.Constant) and a.value == "-m"]
        return any(not isinstance(name, ast.Constant) for name in after)
    return False


def arrows(package: Path) -> tuple[dict[str, set[str]], set[str]]:
    """Return the modules that each module imports or names, and the modules that import or start others dynamically."""
    files = {module_of(file, package): file for file in package.rglob("*.py")}
    found: dict[str, set[str]] = {}
    dynamic = set()
    for module, file in files.items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found[module] = set() if module in LAZY else set().union(*(named(text, set(files)) for text in strings(tree)))
        dynamic |= {module} if any(map(is_dynamic, ast.walk(tree))) else set()
    return found, dynamic


@pytest.fixture(scope="module")
def found() -> tuple[dict[str, set[str]], set[str]]:
    return arrows(ROOT / "attnkit")


@pytest.fixture(scope="module")
def graph(found: tuple[dict[str, set[str]], set[str]]) -> dict[str, set[str]]:
    named_by, _ = found
    imports = grimp.build_graph("attnkit", exclude_type_checking_imports=False, cache_dir=None)
    return {
        module: (set(imports.find_modules_directly_imported_by(module)) | named_by[module]) - {module, "attnkit"} for module in named_by
    }


def layers() -> dict[str, int]:
    """Return the height of each package, by the contract in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [contract] = [c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    return {name: -i for i, line in enumerate(contract["layers"]) for name in line.split(" | ")}


def upward(graph: dict[str, set[str]]) -> list[str]:
    height = layers()
    pairs = [(a, b, a.split(".")[1], b.split(".")[1]) for a, targets in graph.items() if a != "attnkit" for b in targets]
    return sorted(f"{a} -> {b}" for a, b, above, below in pairs if above != below and height[above] <= height[below])


def test_no_package_depends_on_a_higher_one(graph: dict[str, set[str]]) -> None:
    assert upward(graph) == []


def test_no_modules_form_an_unknown_import_cycle(graph: dict[str, set[str]]) -> None:
    assert all(b in graph[a] for a, b in KNOWN), "one of the known circles is gone: take it from the list"
    left = {a: {b for b in targets if (a, b) not in KNOWN} for a, targets in graph.items()}
    try:
        TopologicalSorter(left).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_dynamically_named_imports_are_listed(found: tuple[dict[str, set[str]], set[str]]) -> None:
    assert found[1] == set(DYNAMIC)


@pytest.mark.parametrize(
    ("source", "arrow"),
    [
        ('WORKER = "attnkit.cli.main"', "attnkit.ablation.x -> attnkit.cli.main"),
        ('subprocess.run([sys.executable, "-m", "attnkit.cli.main"])', "attnkit.ablation.x -> attnkit.cli.main"),
        ('subprocess.run("python -m attnkit.cli.main", shell=True)', "attnkit.ablation.x -> attnkit.cli.main"),
        ('import_module("attnkit.cli.main").main()', "attnkit.ablation.x -> attnkit.cli.main"),
        ('command = "attnkit.cli.main:main"', "attnkit.ablation.x -> attnkit.cli.main"),
        ('"""See attnkit.cli.main."""', None),
        ('WORKER = "attnkit.worker.run"', None),
    ],
)
def test_an_upward_dependency_in_a_string_is_found(source: str, arrow: str | None) -> None:
    modules = {"attnkit", "attnkit.cli.main", "attnkit.worker.run"}
    found = set().union(*(named(text, modules) for text in strings(ast.parse(source))))
    assert upward({"attnkit.ablation.x": found}) == ([arrow] if arrow else [])


@pytest.mark.parametrize("source", ["import_module(name)", '[sys.executable, "-m", worker]', '__import__(f"attnkit.{name}")'])
def test_a_dynamically_named_import_is_found(source: str) -> None:
    assert any(map(is_dynamic, ast.walk(ast.parse(source))))
