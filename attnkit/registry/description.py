"""The description of a component, read from its docstring and signature."""

import inspect
import re
from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from attnkit.registry.docstrings import section_of, with_inherited
from attnkit.registry.examples import example_of

if TYPE_CHECKING:
    from attnkit.registry.arguments import Argument


@dataclass(frozen=True)
class Description:
    """A component's documentation, as `describe` returns it."""

    family: str
    name: str
    summary: str
    documentation: str
    equation: str | None
    example: str
    paper: str | None
    arguments: "tuple[Argument, ...]"
    given: tuple[str, ...]
    file: str
    line: int

    @classmethod
    def of(cls, component: type, *, family: str, name: str, arguments: "tuple[Argument, ...]", given: Set[str]) -> Self:
        """Read the documentation of a class that is registered as `name`, with the `Args:` and `Raises:` of its bases.

        `given` are the arguments that parents pass in its family.
        """
        documentation = inspect.cleandoc(with_inherited(component, component.__mro__))
        paper = re.search(r"^Paper:\s*(.+?)(?:\n\n|\Z)", documentation, re.M | re.S)
        file, line = _source(component)
        return cls(
            family=family,
            name=name,
            summary=documentation.partition("\n")[0],
            documentation=documentation,
            equation=inspect.cleandoc(section_of(documentation, "Equation")) or None,
            example=example_of(documentation, component.__module__),
            paper=" ".join(paper[1].split()) if paper else None,
            arguments=arguments,
            given=tuple(p for p in inspect.signature(component).parameters if p in given),
            file=file,
            line=line,
        )


def _source(cls: type) -> tuple[str, int]:
    """Return the file and line of a class; `?` and 0 if it was defined interactively or created by a function."""
    try:
        return inspect.getsourcefile(cls) or "?", inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return "?", 0
