"""The example of a component, with the imports that its module has already made."""

import ast
import sys
from types import ModuleType

from attnkit.registry.docstrings import section_of


def example_of(documentation: str, module: str) -> str:
    r"""Return the `Example:` of a docstring of a module, after imports of the names that it takes from there; it may be empty.

    Example:
        >>> example_of("Norm.\n\nExample:\n    >>> section_of('', 'Args')\n    ''\n", "attnkit.registry.examples").splitlines()[0]
        '>>> from attnkit.registry.docstrings import section_of'
    """
    example = section_of(documentation, "Example")
    known = getattr(sys.modules.get(module), "__dict__", {})
    imports = {_import(name, known[name], module) for name in free_names(example) if name in known}
    return "\n".join([*sorted(imports, key=lambda line: ("attnkit" in line, line)), example]).strip()


def free_names(example: str) -> set[str]:
    """Return the names that an example reads and does not define; none if it is not Python."""
    read: set[str] = set()
    written: set[str] = set()
    try:
        tree = ast.parse("\n".join(line[4:] for line in example.splitlines() if line.startswith((">>>", "..."))))
    except SyntaxError:
        return set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else written).add(node.id)
        elif isinstance(node, ast.alias):
            written.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            written.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            written.add(node.name)
    return read - written


def _import(name: str, value: object, module: str) -> str:
    if isinstance(value, ModuleType):
        parent, _, last = value.__name__.rpartition(".")
        return f">>> from {parent} import {last}" if parent else f">>> import {name}"
    home = getattr(value, "__module__", module)
    return f">>> from {home if getattr(sys.modules.get(home), name, None) is value else module} import {name}"
