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
    found = re.search(rf"^{title}:\n((?:[ \t]+.*(?:\n|$)|\n)+)", documentation, re.MULTILINE)
    return textwrap.dedent(found[1]).strip() if found else ""


def argument_docs(documentation: str) -> dict[str, str]:
    r"""Return the description of each argument in the `Args:` section of a docstring.

    Example:
        >>> argument_docs("Norm.\n\nArgs:\n    eps: Added to the variance,\n        so that it is not zero.\n")
        {'eps': 'Added to the variance, so that it is not zero.'}
    """
    return {entry[1]: " ".join(entry[2].split()) for entry in _ENTRY.finditer(section_of(documentation, "Args"))}


def inherit(owner: type, sources: tuple[type, ...]) -> None:
    """Write the `Args:` and `Raises:` of classes into a docstring, before `Example:`; of entries of one name, the first class's counts.

    Of other classes' arguments, those that the constructor does not take are left out.
    """
    if owner.__doc__ is None:  # -OO drops it
        return
    parts = [part for part in inspect.cleandoc(owner.__doc__).split("\n\n") if not part.startswith(("Args:\n", "Raises:\n"))]
    end = next((i for i, part in enumerate(parts) if part.startswith("Example:\n")), len(parts))
    parts[end:end] = filter(None, (_joined(title, owner, sources) for title in ("Args", "Raises")))
    owner.__doc__ = "\n\n".join(parts)


def _joined(title: str, owner: type, sources: tuple[type, ...]) -> str:
    entries: dict[str, str] = {}
    taken = inspect.signature(owner).parameters
    for source in reversed(sources):
        for entry in _ENTRY.finditer(section_of(inspect.cleandoc(vars(source).get("__doc__") or ""), title)):
            if source is owner or title == "Raises" or entry[1] in taken:
                entries[entry[1]] = entry[0]
    text = "\n".join(entries.values())
    return f"{title}:\n{textwrap.indent(text, '    ')}" if entries else ""
