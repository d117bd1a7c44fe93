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
