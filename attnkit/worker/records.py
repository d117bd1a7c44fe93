"""Reads dataclasses from plain data: JSON written by another process, or a section of a study file. No torch."""

import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from attnkit.registry import ConfigurationError, nearest
from attnkit.registry.values import is_of_type, is_union

T = TypeVar("T")
KINDS = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    types.NoneType: "null",
    tuple: "a list",
    Sequence: "a list",
}


def read(cls: type[T], given: Any, *, where: str, examples: Mapping[str, str] | None = None) -> T:
    """Make a dataclass from a mapping of its fields; following the annotations, lists become tuples and mappings become dataclasses.

    Numbers must be finite. Messages refer to the mapping as `where` and show `examples` of field values.

    Example:
        >>> from attnkit.worker.budget import Budget
        >>> read(Budget, {"on": "steps", "limit": 10}, where="budget")
        Budget(on='steps', limit=10)
        >>> read(Budget, {"on": "steps", "limit": "ten"}, where="budget")
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: budget: limit must be a number, but is 'ten'
    """
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{where} must be a mapping with the keys {', '.join(known)}, but is {given!r}")
    if unknown := [key for key in given if key not in known]:
        raise ConfigurationError(f"{where}: unknown key {unknown[0]!r}.{nearest(str(unknown[0]), known)} Keys: {', '.join(known)}.")
    if missing := [n for n, f in known.items() if n not in given and f.default is MISSING and f.default_factory is MISSING]:
        raise ConfigurationError(f"{where} needs the key {missing[0]}")
    return cls(**_converted(cls, given, where, examples or {}))


def check(record: Any, *, where: str) -> None:
    """Raise a `ConfigurationError` if a field of a dataclass does not match its annotation."""
    _converted(type(record), vars(record), where, {})


def _converted(cls: type, given: Mapping[str, Any], where: str, examples: Mapping[str, str]) -> dict[str, Any]:
    hints, values = get_type_hints(cls), {}
    for name, value in given.items():
        try:
            values[name] = _read(hints[name], value, f"{where}: {name}")
        except TypeError as error:
            example = f", as in {examples[name]}" if name in examples else ""
            raise ConfigurationError(f"{where}: {name}{str(error) or _expected(hints[name], value, example)}") from None
    return values


def _read(annotation: Any, value: Any, where: str) -> Any:
    """Convert a value to its annotated type. Raises a TypeError if it does not fit, with a message if a generic one would not do."""
    if annotation is type(value) is float and abs(value) <= sys.float_info.max:  # fast path for the many points of curves
        return value
    origin, inside = get_origin(annotation), get_args(annotation)
    if is_union(annotation):
        words: list[str] = []
        for member in inside:
            try:
                return _read(member, value, where)
            except TypeError as error:
                words.extend(error.args)
        raise TypeError(*words[:1])
    if isinstance(annotation, type) and is_dataclass(annotation):
        if not isinstance(value, Mapping | annotation):
            raise TypeError
        return value if isinstance(value, annotation) else read(annotation, value, where=where)
    if origin in (tuple, Sequence):
        if not isinstance(value, list | tuple):
            raise TypeError
        kinds = inside if origin is tuple and inside[-1] is not Ellipsis else [inside[0]] * len(value)
        if len(kinds) != len(value):
            raise TypeError
        return tuple(_inside(kind, item, where, f"[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))
    if origin is Mapping:
        if not isinstance(value, Mapping) or not all(is_of_type(key, inside[0]) for key in value):
            raise TypeError
        return {key: _inside(inside[1], item, f"{where}.{key}", f".{key}") for key, item in value.items()}
    if origin is Literal and value not in inside:
        raise TypeError(f": unknown {value!r}.{nearest(str(value), inside)} One of: {', '.join(inside)}.")
    if not is_of_type(value, annotation):
        raise TypeError
    if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:  # nor NaN
        raise TypeError(f" must be a finite number, but is {value!r}")
    return value


def _inside(annotation: Any, value: Any, where: str, place: str) -> Any:
    """Convert an item of a list or mapping to its annotated type. Raises a TypeError that says where it is if it does not fit."""
    try:
        return _read(annotation, value, where)
    except TypeError as error:
        raise TypeError(f"{place}{str(error) or _expected(annotation, value, '')}") from None


def _expected(annotation: Any, value: Any, example: str) -> str:
    members = get_args(annotation) if is_union(annotation) else (annotation,)
    kinds = (KINDS.get(get_origin(member) or member, "a mapping") for member in members)
    return f" must be {' or '.join(kinds)}{example}, but is {value!r}"
