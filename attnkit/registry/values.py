"""Values of arguments against their annotations."""

import types
import typing
from typing import Any, Union, get_args, get_origin


def is_of_type(value: Any, annotation: Any) -> bool:
    """Check a value against the plain annotations that specs use; anything else passes."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(is_of_type(value, a) for a in get_args(annotation))
    if origin is typing.Literal:
        return value in get_args(annotation)
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
    """Return the number that a string spells, such as `1e-5`, which readers of YAML 1.1 leave a string; None if it spells none.

    Example:
        >>> number_in("1e-5"), number_in("8"), number_in("small"), number_in(8)
        (1e-05, 8, None, None)
    """
    for read in (int, float):
        try:
            return read(value) if isinstance(value, str) else None
        except ValueError:
            continue
    return None


def yaml_number(number: int | float) -> str:
    """Return a number as every reader of YAML takes it for one: 1.1 wants a point before the exponent.

    Example:
        >>> yaml_number(1e-5), yaml_number(8)
        ('1.0e-05', '8')
    """
    digits, e, exponent = repr(number).partition("e")
    return f"{digits}.0e{exponent}" if e and "." not in digits else repr(number)
