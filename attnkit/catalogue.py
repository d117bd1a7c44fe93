"""The catalogue: the documentation of every registered component, as Markdown pages."""

import inspect
import re
from pathlib import Path

from attnkit.registry import Argument, Description, Registry
from attnkit.registry.docstrings import argument_docs

_REPOSITORY = Path(__file__).parents[1]


def page(registry: Registry) -> str:
    """Return the Markdown page of a family: a table of its components, then the full documentation of each.

    Includes plugins; torch's own classes are listed by name only. Arguments that a parent passes are separate from those that a user may
    set. LaTeX is in `$$`; links such as `norms.md` lead to other families. Imports every component.

    Example:
        >>> import attnkit
        >>> print(page(attnkit.norms).splitlines()[0])
        # norms
    """
    foreign = [name for name in registry.names() if registry.get(name).__module__.startswith("torch.")]
    described = [registry.describe(name) for name in registry.names() if name not in foreign]
    rows = [f"| [`{d.name}`](#{d.name}) | {_cell(d.summary)} |" for d in described]
    parts = [f"# {registry.attribute}", "\n".join([f"| {registry.family} | |", "|---|---|", *rows])]
    if foreign:
        parts.append(f"From torch, which documents them: {', '.join(f'`{name}`' for name in foreign)}.")
    return "\n\n".join([*parts, *(section(d) for d in described)])


def section(description: Description) -> str:
    """Return the Markdown section of one component.

    Example:
        >>> import attnkit
        >>> "| `eps` | `float` | `1e-06` |" in section(attnkit.norms.describe("rms_norm"))
        True
    """
    parts = [f"## {description.name}", description.summary]
    if explanation := explanation_of(description.documentation):
        parts.append(explanation)
    if description.equation:
        latex, _, where = description.equation.strip().removeprefix("$$").partition("$$")
        parts.append(f"$$\n{latex.strip()}\n$$")
        parts += [inspect.cleandoc(where)] if where.strip() else []
    if description.arguments:
        meanings = argument_docs(description.documentation)
        rows = [_row(a, meanings.get(a.name, "")) for a in description.arguments]
        parts.append("\n".join(["| argument | type | default | |", "|---|---|---|---|", *rows]))
    if description.given:
        parts.append(f"The parent passes {', '.join(f'`{name}`' for name in description.given)}.")
    if description.example:
        parts.append(f"```python\n{description.example}\n```")
    source = f"`{_location(description)}`"
    parts.append(f"Paper: {_linked(description.paper)}. Source: {source}" if description.paper else f"Source: {source}")
    return "\n\n".join(parts) + "\n"


def explanation_of(documentation: str) -> str:
    r"""Return the paragraphs after the summary, without sections.

    Example:
        >>> explanation_of("Norm.\n\nIt scales.\n\nArgs:\n    eps: Small.\n\nRaises:\n    ValueError: Never.\n")
        'It scales.'
    """
    without_sections = re.sub(r"^\w+:\n((?:[ \t]+.*(?:\n|$)|\n)+)", "", documentation.partition("\n")[2], flags=re.MULTILINE)
    without_paper = re.sub(r"^Paper:.*\n?(?:.+\n?)*", "", without_sections, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", without_paper).strip()


def _row(argument: Argument, meaning: str) -> str:
    """Return the table row of an argument; a slot's type links to the page of its family."""
    slot = argument.registry
    kind = f"`{argument.type}`" if slot is None else f"[{slot.family}]({slot.attribute}.md)"
    default = "required" if argument.required else f"`{argument.default!r}`"
    return f"| `{argument.name}` | {kind} | {default} | {_cell(meaning)} |"


def _cell(text: str) -> str:
    """Escape characters that would end a table cell, except in code spans."""
    return "`".join(part if i % 2 else part.replace("|", "\\|") for i, part in enumerate(text.split("`")))


def _location(description: Description) -> str:
    """Return file and line, relative to the root of the repository, or to `site-packages` for a plugin."""
    file = Path(description.file)
    root = next((p for p in (_REPOSITORY, *file.parents) if p == _REPOSITORY or p.name == "site-packages"), _REPOSITORY)
    return f"{file.relative_to(root) if file.is_relative_to(root) else file.name}:{description.line}"


def _linked(text: str) -> str:
    return re.sub(r"https?://[^\s;,()]+", lambda url: f"<{url[0]}>", text)
