"""Values of arguments: checks and conversions of their types, and plain data."""

import inspect
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from attnkit.registry.errors import ConfigurationError

_SEQUENCES, _MAPPINGS = (list, Sequence), (dict, Mapping)
_SCALARS = {types.NoneType, bool, int, float, str}  # values that need no look at the annotation: most of all
_PLAIN = (*_SCALARS, list, tuple, dict)


class Word(str):
    """A scalar from the command line, with the value that YAML reads: `123` is a number or a string, whichever its argument takes."""

    value: Any

    def __new__(cls, text: str, value: Any) -> Self:
        """Return `text` with its alternative value."""
        word = super().__new__(cls, text)
        word.value = value
        return word


def spelled(annotation: Any) -> Any:
    """Return the annotation of a value's spec, in which an Enum is the `Literal` of its members' names.

    Example:
        >>> from enum import Enum
        >>> spelled(dict[str, Enum("Size", "SMALL LARGE")])
        dict[str, typing.Literal['SMALL', 'LARGE']]
    """
    if _is_enum(annotation):
        return Literal[tuple(annotation.__members__)]
    if not any(map(_is_enum, _leaves(annotation))) or get_origin(annotation) is Annotated:
        return annotation
    inside = tuple(spelled(part) for part in get_args(annotation))
    return Union[inside] if is_union(annotation) else get_origin(annotation)[inside]  # noqa: UP007


def written(value: Any, annotation: Any) -> Any:
    """Return `value` as its spec writes it: the members of the Enums in `annotation` by their names, its paths as strings.

    Example:
        >>> from enum import Enum
        >>> Size = Enum("Size", "SMALL LARGE")
        >>> written((Size.SMALL, Path("a")), tuple[Size, Path]), written(Path("a"), int)
        (['SMALL', 'a'], PosixPath('a'))
    """
    if type(value) in _SCALARS:
        return value
    leaves = list(_leaves(annotation))

    def spell(item: Any) -> Any:
        if isinstance(item, Mapping) and type(item) is dict:
            return {key: spell(part) for key, part in item.items()}
        if type(item) in (list, tuple):
            return [spell(part) for part in item]
        if isinstance(item, Enum) and type(item) in leaves:
            return item.name
        return str(item) if isinstance(item, Path) and Path in leaves else item

    return spell(value) if Path in leaves or any(map(_is_enum, leaves)) else value


def built(value: Any, annotation: Any, use: Callable[[Any], Any]) -> Any:
    """Return the object that a checked value of a spec stands for: the inverse of `written`.

    Lists and dictionaries are copied, so that no component can change another's spec, and `use` is applied to everything in them that
    `annotation` does not convert.

    Example:
        >>> built([3, 4], tuple[int, int] | None, use=lambda part: part), built(["a"], list[Path], use=lambda part: part)
        ((3, 4), [PosixPath('a')])
    """
    if type(value) in _SCALARS and type(value) is not str:
        return use(value)
    if is_union(annotation):
        fitting = (part for part in get_args(annotation) if is_of_type(value, spelled(part)))
        annotation = min(fitting, key=_rank, default=Any)
    inside = get_args(annotation)
    if isinstance(value, dict):
        part = inside[1] if get_origin(annotation) in _MAPPINGS and len(inside) == 2 else Any
        return {key: built(item, part, use) for key, item in value.items()}
    if isinstance(value, list):
        items = [built(item, part, use) for item, part in zip(value, _parts(annotation, len(value)), strict=True)]
        return tuple(items) if tuple in (annotation, get_origin(annotation)) else items
    if isinstance(value, str) and _is_enum(annotation):
        return annotation[value]
    return Path(value) if isinstance(value, str) and annotation is Path else use(value)


def _rank(annotation: Any) -> int:
    """Return the place of a member of a union among those that a value fits: a string is rather an Enum's member than any string."""
    leaves = list(_leaves(annotation))
    if any(map(_is_enum, leaves)):
        return 0
    return 1 if annotation is str or Path in leaves or get_origin(annotation) is tuple else 2


def is_union(annotation: Any) -> bool:
    """Return whether an annotation has alternatives, written as `X | Y`, `Union[X, Y]` or `Optional[X]`."""
    return get_origin(annotation) in (Union, types.UnionType)


def _is_enum(annotation: Any) -> bool:
    is_class = inspect.isclass(annotation) and get_origin(annotation) is None
    return is_class and issubclass(annotation, Enum) and bool(annotation.__members__)


def _leaves(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation that have no types inside."""
    inside = get_args(annotation) if get_origin(annotation) is not Literal else ()
    if not inside:
        yield annotation
    for part in inside:
        yield from _leaves(part)


def _parts(annotation: Any, length: int) -> Sequence[Any]:
    """Return the annotations of the items of a list of a length that fits `annotation`."""
    inside = get_args(annotation)
    if get_origin(annotation) is tuple and Ellipsis not in inside and len(inside) == length:
        return inside
    return [inside[0] if inside and get_origin(annotation) in (*_SEQUENCES, tuple) else Any] * length


def typed(value: Any, annotation: Any) -> Any:
    """Return a copy of `value` with each `Word` converted to the type of `annotation`; tuples become lists, as in YAML.

    Example:
        >>> [typed(Word("12", 12), annotation) for annotation in (int, str, str | int, list[str])]
        [12, '12', 12, 12]
    """
    if type(value) in _SCALARS:
        return value
    wanted = _members(annotation)
    if isinstance(value, Mapping):
        part = next((get_args(kind)[1] for kind in wanted if get_origin(kind) in _MAPPINGS), Any)
        return {key: typed(item, part) for key, item in value.items()}
    if isinstance(value, list | tuple):
        kind = next((kind for kind in wanted if get_origin(kind) in (*_SEQUENCES, tuple)), Any)
        return [typed(item, part) for item, part in zip(value, _parts(kind, len(value)), strict=True)]
    if not isinstance(value, Word):
        return value
    read = value.value
    is_wanted = read in wanted or type(read) in wanted or (isinstance(read, int) and float in wanted)
    return str(value) if not is_wanted and (str in wanted or Path in wanted or str(value) in wanted) else read


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union: its types, and the values of its Literals."""
    if is_union(annotation):
        return tuple(member for part in get_args(annotation) for member in _members(part))
    return get_args(annotation) if get_origin(annotation) is Literal else (annotation,)


def is_of_type(value: Any, annotation: Any) -> bool:
    """Check a value against the simple annotations that specs use; any other annotation accepts it."""
    origin = get_origin(annotation)
    if is_union(annotation):
        return any(is_of_type(value, a) for a in get_args(annotation))
    if origin is Literal:
        return value in get_args(annotation)
    if origin in _SEQUENCES:
        if not isinstance(value, list | tuple):
            return origin is Sequence  # a string is left to the component, which can say more about it
        return all(is_of_type(item, get_args(annotation)[0]) for item in value)
    if tuple in (origin, annotation):
        parts = get_args(annotation)
        fits = isinstance(value, list | tuple) and (not parts or Ellipsis in parts or len(value) == len(parts))
        return fits and all(map(is_of_type, value, _parts(annotation, len(value))))
    if origin in _MAPPINGS:
        # an object is left to `plain_data`, which says where it is
        return isinstance(value, Mapping) and all(
            is_of_type(item, get_args(annotation)[1]) for item in value.values() if isinstance(item, _PLAIN)
        )
    if annotation is None or annotation is types.NoneType:
        return value is None
    if annotation in (bool, str, Path):
        return isinstance(value, str if annotation is Path else annotation)
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


def is_finite(value: Any) -> bool:
    """Return whether a value of a spec is none, and has none, of the numbers inf and nan; other specs inside it were checked before.

    Example:
        >>> is_finite([0.9, "nan", 1]), is_finite([0.9, float("nan")])
        (True, False)
    """
    if isinstance(value, list | dict):
        return all(map(is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def yaml_number(number: int | float) -> str:
    """Format a number so that every YAML reader parses it as one: YAML 1.1 requires a point before the exponent.

    Example:
        >>> yaml_number(1e-5), yaml_number(8)
        ('1.0e-05', '8')
    """
    digits, e, exponent = repr(number).partition("e")
    return f"{digits}.0e{exponent}" if e and "." not in digits else repr(number)


def plain_data(value: Any, *, path: str) -> Any:
    """Return a copy of `value` made only of mappings, lists, strings, numbers, booleans and None; raise, with `path`, if it has others.

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
