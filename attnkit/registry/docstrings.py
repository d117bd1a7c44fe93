"""Sections of docstrings in Google's style."""

import inspect
import re
import textwrap

_ENTRY = re.compile(r"^(\w+)(?: \([^)]*\))?:(.*(?:\n[ \t]+.*)*)", re.MULTILINE)


def section_of(documentation: str, title: str) -> str:
    r"""Return the content of a section of a docstring, or an empty string.

    Example:
        >>> section_of("Norm.\n\nExample:\n    >>> 1 + 1\n    2\n", "Example")
        '>>> 1 + 1\n2'
    """
    found = _section(title).search(documentation)
    return textwrap.dedent(found[1]).strip() if found else ""


def argument_docs(documentation: str, section: str = "Args") -> dict[str, str]:
    r"""Return the description of each argument in the `Args:` section of a docstring, or of each entry in another section.

    Example:
        >>> argument_docs("Norm.\n\nArgs:\n    eps: Added to the variance,\n        so that it is not zero.\n")
        {'eps': 'Added to the variance, so that it is not zero.'}
    """
    return {entry[1]: " ".join(entry[2].split()) for entry in _ENTRY.finditer(section_of(documentation, section))}


def inherit(owner: type, sources: tuple[type, ...]) -> None:
    """Write what `with_inherited` returns into a docstring."""
    if owner.__doc__ is not None:  # -OO drops it
        owner.__doc__ = with_inherited(owner, sources)


def with_inherited(owner: type, sources: tuple[type, ...]) -> str:
    """Return the docstring of a class with the `Args:` and `Raises:` of other classes, before `Example:`; it may have none.

    If several classes have an entry of the same name, that of the first class is used. Arguments of other classes that the constructor does
    not take are left out.
    """
    documentation = inspect.cleandoc(owner.__doc__ or "")  # its own: that of a base would describe another class
    titles = ("Args", "Raises")
    entries = {title: _entries(title, owner, sources) for title in titles}
    if not documentation or entries == {title: _entries(title, owner, (owner,)) for title in titles}:
        return owner.__doc__ or ""  # nothing to add
    documentation += "\n"
    for title in titles:
        documentation = _section(title).sub("", documentation)
    parts = documentation.strip().split("\n\n")
    end = next((i for i, part in enumerate(parts) if part.startswith("Example:\n")), len(parts))
    parts[end:end] = [f"{title}:\n" + textwrap.indent("\n".join(found.values()), "    ") for title, found in entries.items() if found]
    return "\n\n".join(parts)


def _entries(title: str, owner: type, sources: tuple[type, ...]) -> dict[str, str]:
    taken = inspect.signature(owner).parameters
    entries: dict[str, str] = {}
    for source in reversed(sources):
        for entry in _ENTRY.finditer(section_of(inspect.cleandoc(vars(source).get("__doc__") or ""), title)):
            if source is owner or title == "Raises" or entry[1] in taken:
                entries[entry[1]] = entry[0]
    return entries


def _section(title: str) -> re.Pattern[str]:
    return re.compile(rf"^{title}:\n((?:[ \t]+.*(?:\n|$)|\n)+)", re.MULTILINE)
