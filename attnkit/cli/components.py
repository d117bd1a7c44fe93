"""`attnkit list` and `attnkit describe`: the names and the documentation of components."""

import ast
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from attnkit.catalogue import explanation_of
from attnkit.files import short_path
from attnkit.own_code import source_of
from attnkit.registry import FAMILIES, Argument, ConfigurationError, Registry, nearest, optimizers
from attnkit.registry.base import Fields
from attnkit.registry.docstrings import argument_docs
from attnkit.registry.values import written


def list_components(family: str | None = None) -> str:
    """Return the names of one family, or of all, each with its one-line summary. No component is imported."""
    chosen = [find_family(family)] if family else [r for r in FAMILIES if r.names()]
    width = max((len(name) for registry in chosen for name in registry.names()), default=0)
    blocks = []
    for registry in chosen:
        lines = [f"  {name:<{width}}  {summary(registry, name)}".rstrip() for name in registry.names()]
        blocks.append("\n".join([f"{registry.attribute}:", *lines]))
    return "\n\n".join(blocks)


def find_family(word: str) -> Registry:
    """Return the registry called `word`, in the singular (`attention`) or the plural (`attentions`)."""
    for registry in FAMILIES:
        if word in (registry.family, registry.attribute):
            return registry
    known = [registry.attribute for registry in FAMILIES]
    raise ConfigurationError(f"unknown family {word!r}.{nearest(word, known)} Families: {', '.join(known)}.")


def find_component(word: str) -> tuple[Registry, str]:
    """Return the registry and the name of the component `family.name` or just `name`; raise if none or several families have it."""
    family, dot, name = word.rpartition(".")
    if dot:
        registry = find_family(family)
        registry.get(name)
        return registry, name
    owners = [registry for registry in FAMILIES if word in registry]
    if len(owners) == 1:
        return owners[0], word
    if owners:
        choices = " or ".join(f"{registry.family}.{word}" for registry in owners)
        raise ConfigurationError(f"{word!r} is the name of several components; write {choices}")
    known = sorted({name for registry in FAMILIES for name in registry})
    raise ConfigurationError(f"no component is called {word!r}.{nearest(word, known)} `attnkit list` shows all names.")


def summary(registry: Registry, name: str) -> str:
    """Return the first line of a component's documentation, from its source without importing it, or from the class registered so far."""
    cls, plugins = registry.registered(name), registry.plugins.get(name, [])
    known = (f"{registry.package}.{name}", *(point.module for point in plugins))
    if cls is not None and cls.__module__ not in known and not cls.__module__.startswith("torch."):
        return (cls.__doc__ or "").strip().partition("\n")[0]
    if plugins:
        plugin = plugins[0]
        origin = f" [{plugin.dist.name}]" if plugin.dist else ""
        module = source_of(plugin.module)
        return (_first_line(module, lambda node: bool(node.name == plugin.attr)) if module else "") + origin
    source = Path(__file__).parents[1].joinpath(*registry.package.split(".")[1:], f"{name}.py")
    if not source.is_file():
        return "from torch.optim" if registry is optimizers else ""
    return _first_line(source, lambda node: any(ast.unparse(d).endswith(f".register({name!r})") for d in node.decorator_list))


def _first_line(source: Path, matches: Callable[[ast.ClassDef], bool]) -> str:
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return ""
    found = next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and matches(node)), None)
    return ((found and ast.get_docstring(found)) or "").partition("\n")[0]


def _lines_of(argument: Argument, *, inside: tuple[Registry, ...] = ()) -> Iterator[str]:
    """Yield a line for an argument, and one per field if it is a dataclass; `inside` lists the enclosing dataclasses, which may recur."""
    default = "(required)" if argument.required else f"= {argument.default!r}"
    yield f"{argument.name}: {argument.type} {default}"
    slot = argument.registry
    if isinstance(slot, Fields) and slot not in inside:
        for field in slot.arguments(slot.path):
            value = written(getattr(argument.default, field.name, field.default), field.object_type)
            yield from _lines_of(replace(field, name=f"{argument.name}.{field.name}", default=value), inside=(*inside, slot))


def describe(registry: Registry, name: str) -> str:
    """Describe a component: its equation, its arguments with types and defaults, an example, its paper and its source."""
    description = registry.describe(name)
    meanings = argument_docs(description.documentation)
    component = registry.get(name)
    from_data = getattr(component, "from_data", {})
    is_foreign = component.__module__.startswith("torch.")  # a foreign class's explanation is a page of reStructuredText
    lines = [f"{registry.family}.{name}: {description.summary}".rstrip(": ")]
    if description.equation:
        lines += ["", "Equation:", *(f"  {line}" for line in description.equation.splitlines())]
    if not is_foreign and (explanation := explanation_of(description.documentation)):
        lines += ["", explanation]
    own = [a for a in description.arguments if a.name not in from_data]
    lines += ["", "Arguments:" if own else "Arguments: none"]
    for argument in own:
        lines += (f"  {line}" for line in _lines_of(argument))
        if argument.name in meanings:
            lines.append(textwrap.fill(meanings[argument.name], width=110, initial_indent="      ", subsequent_indent="      "))
    if given := [*description.given, *from_data]:
        lines.append(f"  Passed by the {'data module' if from_data else 'parent'}, not by you: {', '.join(given)}")
    if description.example:
        lines += ["", "Example:", textwrap.indent(description.example, "  ")]
    if description.paper:
        lines += ["", f"Paper: {description.paper}"]
    lines += ["", f"Source: {short_path(description.file)}:{description.line}"]
    return "\n".join(lines)
