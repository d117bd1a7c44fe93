"""Values of arguments: checks and conversions of their types, and plain data."""

import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Self, Union, get_args, get_origin

from attnkit.registry.errors import ConfigurationError


class Word(str):
    """A scalar from the command line, with the value that YAML reads: `123` is a number or a string, whichever its argument takes."""

    value: Any

    def __new__(cls, text: str, value: Any) -> Self:
        """Return `text` with its alternative value."""
        word = super().__new__(cls, text)
        word.value = value
        return word


def typed(value: Any, annotation: Any) -> Any:
    """Return a copy of `value` with each `Word` converted to the type of `annotation`; tuples become lists, as in YAML.

    Example:
        >>> [typed(Word("12", 12), annotation) for annotation in (int, str, str | int, list[str])]
        [12, '12', 12, 12]
    """
    if isinstance(value, Mapping):
        return {key: typed(item, Any) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [typed(item, Any) for item in value]
    if not isinstance(value, Word):
        return value
    read, wanted = value.value, _members(annotation)
    is_wanted = read in wanted or type(read) in wanted or (isinstance(read, int) and float in wanted)
    return str(value) if not is_wanted and (str in wanted or str(value) in wanted) else read


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union: its types, and the values of its Literals."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for part in get_args(annotation) for member in _members(part))
    return get_args(annotation) if get_origin(annotation) is typing.Literal else (annotation,)


def is_of_type(value: Any, annotation: Any) -> bool:
    """Check a value against the simple annotations that specs use; any other annotation accepts it."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(is_of_type(value, a) for a in get_args(annotation))
    if origin is typing.Literal:
        return value in get_args(annotation)
    if origin in (list, Sequence):
        if not isinstance(value, list | tuple):
            return origin is Sequence  # a string is left to the component, which can say more about it
        return all(is_of_type(item, get_args(annotation)[0]) for item in value)
    if annotation is None or annotation is types.NoneType:
        return value is None
    if annotation in (bool, str):
        return isinstance(value, annotation)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return True


def number_in(value: Any) -> int | float | None:
    """Return the finite number that a string spells, such as `1e-5`, which YAML 1.1 reads as a string; None if it is not one.

    Example:
        >>> number_in("1e-5"), number_in("8"), number_in("small"), number_in("nan"), number_in(8)
        (1e-05, 8, None, None, None)
    """
    for read in (int, float):
        try:
            number = read(value) if isinstance(value, str) else None
        except ValueError:
            continue
        return number if number is not None and math.isfinite(number) else None
    return None


def yaml_number(number: int | float) -> str:
    """Format a number so that every YAML reader parses it as one: YAML 1.1 requires a point before the exponent.

    Example:
        >>> yaml_number(1e-5), yaml_number(8)
        ('1.0e-05', '8')
    """
    digits, e, exponent = repr(number).partition("e")
    return f"{digits}.0e{exponent}" if e and "." not in digits else repr(number)


def plain_data(value: Any, *, path: str) -> Any:
    """Return a copy of `value` made only of mappings, lists, strings, numbers, booleans and None; tuples become lists.

    Raises:
        ConfigurationError: It contains anything else; the message begins with `path`.

    Example:
        >>> plain_data({"betas": (0.9, 0.98)}, path="optimizer")
        {'betas': [0.9, 0.98]}
    """
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)  # numpy's floats and enums with string values lose their type here
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ConfigurationError(f"{path} must be plain data, but has the key {wrong[0]!r} ({type(wrong[0]).__name__}), not a string")
        return {str(key): plain_data(item, path=f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, path=f"{path}[{i}]") for i, item in enumerate(value)]
    raise ConfigurationError(
        f"{path} must be plain data, so that a checkpoint can be rebuilt from it, but is {value!r} ({type(value).__name__}); "
        f"give a registered name, a mapping with a name and arguments, or a number, string or list"
    )
