"""Count the lines of the package by area: code, and docstrings, without comments and empty lines.

    python docs/_tools/lines.py [CHECKOUT ...]

Prints a table with two columns for each checkout (default: this one), as in docs/explanation/architecture.md.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

AREAS = {
    "ablation": "ablation studies",
    "worker": "ablation studies",
    "cli": "command line, training",
    "train": "command line, training",
    "data": "data",
    "corpus": "data",
    "tokenizer": "data",
    "task": "tasks",
    "callback": "tasks",
    "strategy": "tasks",
    "checkpoint": "tasks",
    "profile": "costs, probes, plots",
    "probe": "costs, probes, plots",
    "drawing": "costs, probes, plots",
    "testing": "conformance kit, catalogue",
    "catalogue": "conformance kit, catalogue",
    "registry": "registry, recipes",
    "recipe": "registry, recipes",
    "mixer": "mixers",
    "attention": "attention",
    "convert": "published models",
}
"""Area by package or module; all others are `REST`."""
REST = "layers, stacks, models, decoding, other components"


def lines_of(module: Path) -> tuple[int, int]:
    """Return how many lines of a module have code, and how many belong to docstrings."""
    text = module.read_text(encoding="utf-8")
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            documented |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    filled = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")}
    return len(filled - documented), len(filled & documented)


def main() -> None:
    """Print the table."""
    checkouts = [Path(folder) for folder in sys.argv[1:]] or [Path(__file__).parents[2]]
    counted = []
    for checkout in checkouts:
        code, documentation = Counter[str](), Counter[str]()
        for module in (checkout / "attnkit").rglob("*.py"):
            area = AREAS.get(module.relative_to(checkout / "attnkit").parts[0].removesuffix(".py"), REST)
            own = lines_of(module)
            code[area], documentation[area] = code[area] + own[0], documentation[area] + own[1]
        counted.append((code, documentation))
    print("| area |" + "".join(f" {checkout.name}: code | docstrings |" for checkout in checkouts))
    print("|---|" + "---|" * (2 * len(counted)))
    for area in [*dict.fromkeys(AREAS.values()), REST]:
        print(f"| {area} |" + "".join(f" {code[area]:,} | {documentation[area]:,} |" for code, documentation in counted))
    print("| all |" + "".join(f" {code.total():,} | {documentation.total():,} |" for code, documentation in counted))


if __name__ == "__main__":
    main()
