"""Constructors that read one configuration object and take its fields as keyword arguments."""

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

P = ParamSpec("P")
Config = TypeVar("Config")
Self = TypeVar("Self")


def keywords_of(config: Callable[P, Config]) -> Callable[[Callable[[Self, Config], None]], Callable[Concatenate[Self, P], None]]:
    """Give a constructor the keyword arguments of a configuration class, with their types, defaults and documentation.

    The signature is that of the configuration, required arguments first, and the class's docstring gets its `Args:`, before `Raises:`.

    Args:
        config: A dataclass with keyword-only fields; the `Args:` of its docstring and of its bases' document the arguments. A default made
            by a `default_factory` is shown in the signature.

    Example:
        >>> from dataclasses import dataclass, field
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Sizes:
        ...     '''The sizes of a stack.
        ...
        ...     Args:
        ...         num_layers: Number of layers.
        ...         widths: The width of each.
        ...     '''
        ...     num_layers: int
        ...     widths: list[int] = field(default_factory=lambda: [8])
        >>> class Stack:
        ...     '''A stack.
        ...
        ...     Raises:
        ...         ValueError: A number is out of range.
        ...     '''
        ...     @keywords_of(Sizes)
        ...     def __init__(self, config):
        ...         self.widths = config.num_layers * config.widths
        >>> Stack(num_layers=2).widths, inspect.signature(Stack).parameters["widths"].default
        ([8, 8], [8])
        >>> "    num_layers: Number of layers." in Stack.__doc__
        True
    """

    def decorate(init: Callable[[Self, Config], None]) -> Callable[Concatenate[Self, P], None]:
        @wraps(init)
        def constructor(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, config(*args, **kwargs))

        made = {f.name: f.default_factory() for f in fields(cast(Any, config)) if f.default_factory is not MISSING}
        found = [p.replace(default=made.get(p.name, p.default)) for p in inspect.signature(config).parameters.values()]
        found.sort(key=lambda parameter: parameter.default is not parameter.empty)
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        constructor.__signature__ = inspect.Signature([own, *found])  # type: ignore[attr-defined]
        constructor.__annotations__ = get_type_hints(config, include_extras=True)
        return cast(Callable[Concatenate[Self, P], None], _Constructor(constructor, cast(type, config)))

    return decorate


class _Constructor:
    """Becomes a plain function when its class is made, and documents the class."""

    def __init__(self, function: Callable[..., None], config: type) -> None:
        self.function, self.config = function, config

    def __set_name__(self, owner: type, name: str) -> None:
        setattr(owner, name, self.function)
        if owner.__doc__ is not None:  # -OO drops it
            found = (re.search(r"^Args:\n((?:[ ]+.*\n)+)", f"{inspect.getdoc(base)}\n", re.M) for base in reversed(self.config.__mro__))
            entries = "".join(section[1] for section in found if section)
            owner.__doc__ = inspect.cleandoc(owner.__doc__).replace("\nRaises:\n", f"\nArgs:\n{entries}\nRaises:\n", 1)
