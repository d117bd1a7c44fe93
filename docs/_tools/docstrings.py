"""Teaches mkdocstrings the two sections that attnkit's docstrings have besides Google's: `Example:` and `Equation:`."""

import re
from typing import Any

import griffe


class Sections(griffe.Extension):
    """Renames `Example:` to the parser's section name, and renders `Equation:` as an equation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of any object."""
        if obj.docstring is None:
            return
        text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
        obj.docstring.value = re.sub(r"^Equation:\n((?:[ ]+.*(?:\n|$))+)", _equation, text, flags=re.MULTILINE)


def _equation(section: re.Match[str]) -> str:
    return f"$$\n{section[1].strip().strip('$').strip()}\n$$\n"
