"""Constructors that read one configuration object and take its fields as keyword arguments, and classes whose fields are arguments."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, dataclass_transform, get_type_hints

from attnkit.registry.docstrings import inherit

P = ParamSpec("P")
Config = TypeVar("Config")
Self = TypeVar("Self")
T = TypeVar("T", bound=type)


def keywords_of(config: Callable[P, Config]) -> Callable[[Callable[[Self, Config], None]], Callable[Concatenate[Self, P], None]]:
    """Give a constructor the keyword arguments of a configuration class, with their types, defaults and documentation.

    The signature is that of the configuration, a dataclass with keyword-only fields, required arguments first; it shows a default made by a
    `default_factory`. The `Args:` and `Raises:` of the configuration and its bases are added to the class's docstring, before `Example:`,
    unless it has an entry of the same name.

    In place of keywords, the constructor of a subclass may pass on its own configuration, if that inherits from this one.

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
        ...     '''A stack.'''
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
            is_whole = len(args) == 1 and not kwargs and isinstance(args[0], cast(type, config))
            init(self, cast(Config, args[0]) if is_whole else config(*args, **kwargs))

        made = {f.name: f.default_factory() for f in fields(cast(Any, config)) if f.default_factory is not MISSING}
        found = [p.replace(default=made.get(p.name, p.default)) for p in inspect.signature(config).parameters.values()]
        found.sort(key=lambda parameter: parameter.default is not parameter.empty)
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        constructor.__signature__ = inspect.Signature([own, *found])  # type: ignore[attr-defined]
        constructor.__annotations__ = get_type_hints(config, include_extras=True)
        return cast(Callable[Concatenate[Self, P], None], _Constructor(constructor, cast(type, config)))

    return decorate


class _Constructor:
    """Becomes a plain function when its class is created, and documents the class."""

    def __init__(self, function: Callable[..., None], config: type) -> None:
        self.function, self.config = function, config

    def __set_name__(self, owner: type, name: str) -> None:
        setattr(owner, name, self.function)
        inherit(owner, (owner, *self.config.__mro__))


@dataclass_transform(kw_only_default=True, eq_default=False)
def fields_as_keywords(cls: T) -> T:
    """Make a class a dataclass whose constructor takes its fields, and those of its bases, as keyword arguments.

    Its docstring gets the `Args:` and `Raises:` of its bases. Anything else that the constructor does goes into `__post_init__`.

    Example:
        >>> @fields_as_keywords
        ... class Rows:
        ...     '''Rows.
        ...
        ...     Args:
        ...         count: Number of rows.
        ...     '''
        ...     count: int = 10
        >>> @fields_as_keywords
        ... class Pairs(Rows):
        ...     '''Pairs.'''
        ...     length: int = 8
        >>> Pairs(length=2).count, "    count: Number of rows." in Pairs.__doc__
        (10, True)
    """
    dataclass(kw_only=True, eq=False, repr=False)(cls)
    inherit(cls, cls.__mro__)
    return cls
