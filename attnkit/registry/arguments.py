"""The arguments of a class, as users of its spec see them, and the specs inside their values."""

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard, get_args, get_origin, get_type_hints

from attnkit.registry.errors import ConfigurationError, nearest
from attnkit.registry.values import Word, is_of_type, is_union, number_in, spelled, typed, written, yaml_number

if TYPE_CHECKING:
    from attnkit.registry.base import Registry

REQUIRED = inspect.Parameter.empty
_LISTS = (list, tuple, collections.abc.Sequence)

Use = Callable[["Registry", Any, str], Any]  # a function of a spec: its registry, the spec, and its location, such as `layers[1].attention`


class WrongType(ConfigurationError):
    """A value does not have its argument's type; the message begins with "must be"."""


class Family:
    """The base of registries, by which the annotation of a slot is recognised."""

    takes_objects = True  # whether a slot may also hold an object that is not a spec

    def takes(self, value: Any) -> bool:
        """Return whether a value of a slot is a spec."""
        return True

    def over(self, default: Any, value: Any) -> Any:
        """Return the value of a slot, with what a mapping without a name leaves out taken from the slot's default."""
        return _over(default, value) if isinstance(default, str | Mapping) else value


class NameOf:
    """Marks a string as the name of a component, or one of a few other words: `Annotated[str, NameOf(backends, "auto")]`."""

    def __init__(self, registry: "Registry", *others: str) -> None:
        self.registry, self.others = registry, others

    @property
    def choices(self) -> Any:
        """The names as a `Literal`."""
        return Literal[(*self.others, *self.registry.names())]


@dataclass(frozen=True)
class Argument:
    """One argument of a component, as users of its spec see it.

    Attributes:
        name: Its name.
        annotation: The type of its value in a spec, which is plain data.
        default: Its default, as a spec writes it.
        object_type: The annotation in the constructor: that of the object which the value in the spec stands for.
    """

    name: str
    annotation: Any
    default: Any = REQUIRED
    object_type: Any = Any

    @property
    def required(self) -> bool:
        """Whether the argument has no default."""
        return self.default is REQUIRED

    @cached_property
    def registry(self) -> "Registry | None":
        """The registry of the components that this argument takes, if it is a component slot."""
        return _slot_of(self.annotation)

    @cached_property
    def registries(self) -> "tuple[Registry, ...]":
        """The registries of all specs that its value may contain, including those inside lists, tuples and mappings."""
        return tuple(dict.fromkeys(_slots_in(self.annotation)))

    @property
    def type(self) -> str:
        """The type, as shown in messages."""
        return type_name(self.annotation)

    def visit(self, value: Any, use: Use, *, path: str = "") -> Any:
        """Return a `value` of the argument, at the location `path`, with each spec in it replaced by `use(registry, spec, path)`.

        Raises:
            WrongType: The value, or a value inside it, does not have the argument's type.
        """
        # a parent may leave the slot of a component empty that a user may not
        is_empty = value is None and self.registry is not None and self.registry.takes_objects
        return None if is_empty else _visit(value, self.annotation, use, path)

    def resolve(self, value: Any, *, path: str = "") -> Any:
        """Return `value` with the specs in its slots resolved, each `Word` converted to the required type, and Enums and paths written.

        A mapping without a name is merged into the default of its slot.

        Raises:
            WrongType: The value, or a value inside it, does not have the argument's type.
            ConfigurationError: A spec in it is wrong.
        """
        if self.registries and isinstance(value, Word) and value.value is None:
            value = None
        value = written(value, self.object_type)
        if self.registry is not None:
            value = self.registry.over(self.default, value)
        return self.visit(value, lambda registry, spec, place: registry.resolve(spec, path=place), path=path)

    def written_default(self, *, path: str = "") -> Any:
        """Return the default as `resolve` would return it, without checking it."""
        return self.resolve(self.default, path=path) if self.registries else typed(self.default, self.annotation)


@cache
def parameters(cls: type) -> Mapping[str, Argument]:
    """Return the constructor arguments of a class by name. Cached: reading a signature takes longer than building most components."""
    try:
        hints = get_type_hints(cls.__init__, include_extras=True)  # type: ignore[misc]
    except NameError as error:
        raise ConfigurationError(
            f"the annotations of {cls.__module__}.{cls.__qualname__} cannot be read: {error}; import it outside of `if TYPE_CHECKING`"
        ) from error
    taken = inspect.signature(cls).parameters.values()
    if unnamed := [p.name for p in taken if p.kind is p.POSITIONAL_ONLY and p.default is REQUIRED]:
        raise ConfigurationError(
            f"{cls.__module__}.{cls.__qualname__} takes {', '.join(unnamed)} by position only; remove the / after them"
        )
    found = [p for p in taken if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    types_of = {p.name: _choices(hints.get(p.name, Any)) for p in found}
    made = {f.name: f.default_factory() for f in fields(cls) if f.default_factory is not MISSING} if is_dataclass(cls) else {}
    return {
        p.name: Argument(p.name, spelled(types_of[p.name]), written(made.get(p.name, p.default), types_of[p.name]), types_of[p.name])
        for p in found
    }


def refuse_unread(cls: type, because: str, **values: Any) -> None:
    """Raise if an argument that a constructor does not read, `because` of others, differs from its default; the message names it.

    Example:
        >>> from attnkit.registry import norms
        >>> refuse_unread(norms.get("layer_norm"), "without learned", bias=False)
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: bias has no effect without learned; remove it
    """
    declared = parameters(cls)
    for name, value in values.items():
        if value != declared[name].default:
            raise ConfigurationError(f"{name} has no effect {because}; remove it")


def _choices(annotation: Any) -> Any:
    marks = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    return next((mark.choices for mark in marks if isinstance(mark, NameOf)), annotation)


def type_name(annotation: Any) -> str:
    """Return an annotation as shown in messages: a slot by its family.

    Example:
        >>> from attnkit.registry import AttentionSpec
        >>> type_name(list[AttentionSpec] | None), type_name(int | None)
        ('list[attention] | None', 'int | None')
    """
    if (slot := _direct(annotation)) is not None:
        return slot.family
    origin, arguments = get_origin(annotation), get_args(annotation)
    if is_union(annotation):
        return " | ".join(type_name(part) for part in arguments)
    if origin is not None and list(_slots_in(annotation)):
        inside = ", ".join("..." if part is Ellipsis else type_name(part) for part in arguments)
        return f"{origin.__name__}[{inside}]"
    return inspect.formatannotation(annotation).replace("typing.", "").replace("collections.abc.", "").replace("NoneType", "None")


def _visit(value: Any, annotation: Any, use: Use, path: str) -> Any:
    slots = list(_slots_in(annotation))
    if not slots:
        value = typed(value, annotation)
        if not is_of_type(value, annotation):
            raise _wrong(value, annotation)
        return value
    if value is None and types.NoneType in get_args(annotation):
        return None
    members = get_args(annotation) if is_union(annotation) else (annotation,)
    direct = [slot for slot in map(_direct, members) if slot is not None]
    slot = next((slot for slot in direct if slot.takes(value)), None)
    for member in members:
        origin, inside = get_origin(member), get_args(member)
        if origin in _LISTS and isinstance(value, list | tuple):
            each = inside if origin is tuple and Ellipsis not in inside else inside[:1] * len(value)
            if len(each) != len(value):
                raise _wrong(value, annotation)
            return [_visit(item, part, use, f"{path}[{i}]") for i, (item, part) in enumerate(zip(value, each, strict=True))]
        if not direct and origin in (dict, collections.abc.Mapping) and isinstance(value, Mapping):
            return {key: _visit(item, inside[1], use, f"{path}.{key}") for key, item in value.items()}
    if slot is not None:
        return use(slot, value, path)
    for member in members:
        own = _direct(member)
        may_fit = own.takes_objects if own is not None else direct or not list(_slots_in(member))
        if may_fit and is_of_type(item := typed(value, member), member):
            return item
    raise _wrong(value, annotation)


def _over(default: Any, value: Any) -> Any:
    """Merge a mapping without a name into the default spec of a slot; a spec with a name replaces the default."""
    if not isinstance(value, Mapping) or "name" in value or "class_path" in value:
        return value
    base = {"name": default} if isinstance(default, str) else dict(default)
    return base | {key: _over(base[key], item) if isinstance(base.get(key), Mapping) else item for key, item in value.items()}


def _wrong(value: Any, annotation: Any) -> WrongType:
    value = str(value) if isinstance(value, Word) else value
    message = f"must be {type_name(annotation)}, but is {value!r} ({type(value).__name__})"
    number = number_in(value)
    if number is not None and is_of_type(number, annotation):
        message += f", a string that looks like a number: write {yaml_number(number)}, without quotes"
    elif isinstance(value, str):
        message += f".{near}" if (near := nearest(value, words_in(annotation))) else ""
    return WrongType(message)


def words_in(annotation: Any) -> list[str]:
    """Return the words of the Literals in an annotation."""
    inside = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [word for word in inside if isinstance(word, str)]
    return [word for part in inside for word in words_in(part)] if is_union(annotation) else []


def _is_family(candidate: Any) -> "TypeGuard[Registry]":
    return isinstance(candidate, Family)


def _direct(annotation: Any) -> "Registry | None":
    """Return the registry in `Annotated[Spec, registry]`."""
    return next(filter(_is_family, annotation.__metadata__), None) if get_origin(annotation) is Annotated else None


def _slot_of(annotation: Any) -> "Registry | None":
    """Return the registry in `Annotated[Spec, registry]` or in `Annotated[Spec, registry] | None`."""
    if is_union(annotation):
        return next((r for r in map(_slot_of, get_args(annotation)) if r is not None), None)
    return _direct(annotation)


def _slots_in(annotation: Any) -> "typing.Iterator[Registry]":
    if (slot := _direct(annotation)) is not None:
        yield slot
    else:
        for part in get_args(annotation):
            yield from _slots_in(part)
