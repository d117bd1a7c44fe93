"""The registry of one family: from specs to components."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from typing_extensions import override

from attnkit.registry.arguments import Argument, WrongType, parameters
from attnkit.registry.class_path import check_class, find
from attnkit.registry.description import Description
from attnkit.registry.errors import ConfigurationError, nearest
from attnkit.registry.names import Names
from attnkit.registry.resolved import ResolvedSpec
from attnkit.registry.values import built, is_finite, is_union

Spec = str | Mapping[str, Any]


class Registry(Names):
    """The registry of one family: its components by name.

    Args:
        attribute: The name of this registry in `attnkit`, such as `"attentions"`; entry points use it as their prefix.
        family: The name of one member in messages, such as `"attention"`.
        package: The package that has one module per built-in name (default: `attnkit.FAMILY`).
        given: The constructor arguments that the parent passes (widths and the like). A component declares those that it
            needs; users never set them.
        built_in: The names that attnkit provides.
        bases: Import paths of base classes; a class given by its path must inherit from one of them.
        linked: Whether other parts of a recipe may supply arguments to a user's own class (one given by its path): these may be missing
            until it is built. Such a class receives specs as plain data, which it can save.

    Example:
        >>> import attnkit
        >>> attnkit.norms.names()
        ['dynamic_tanh', 'layer_norm', 'none', 'rms_norm']
        >>> attnkit.norms.build({"name": "rms_norm", "eps": 1e-5}, d_model=8)
        RMSNorm((8,), eps=1e-05, elementwise_affine=True)
    """

    def build(self, spec: Spec, **given: Any) -> Any:
        """Build the component that `spec` describes.

        Args:
            spec: A name, or a mapping with a name and arguments.
            **given: The arguments that the parent passes, all named in `self.given`. The component receives the ones that it declares.

        Raises:
            ConfigurationError: An unknown name or argument, a value of the wrong type or out of range, or a missing argument.
        """
        if unknown := set(given) - self.given:
            raise TypeError(f"a parent passes {sorted(self.given)} to {self.family} components, not {sorted(unknown)}")
        resolved = self.resolve(spec)
        cls = self.get(resolved.name)
        if self.linked and (missing := [a for a in self.arguments(resolved.name) if a.required and a.name not in resolved]):
            raise ConfigurationError(self._missing(resolved.name, missing))
        accepted = parameters(cls)
        arguments = resolved.unresolved if self._is_foreign(resolved.name) or not self.is_named(resolved.name) else resolved.arguments
        made = {k: built(v, accepted[k].object_type if k in accepted else Any, _object) for k, v in arguments.items()}
        try:
            return cls(**{k: v for k, v in given.items() if k in accepted}, **made)
        except ValueError as error:  # a constructor names the argument that is out of range, not whose it is
            if (said := re.match(r"(\w+)\b(?! ')", str(error))) and said[1] in accepted:
                error.args = (f"{self.family} {resolved.name!r}: {error}",)
            raise
        except TypeError as error:
            if "missing" not in str(error) or all(p.kind != p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values()):
                raise
            raise ConfigurationError(
                f"{self.family} {resolved.name!r} cannot be built: {error}. It gets the arguments that its constructor declares by name; "
                f"declare those that it passes on as **keywords"
            ) from error

    def split(self, spec: Spec) -> tuple[str, dict[str, Any]]:
        """Return the name and the arguments of a spec, unchecked. The import path of a built-in class is replaced by its name."""
        if isinstance(spec, ResolvedSpec) and spec.registry is self:
            return spec.name, spec.arguments
        if isinstance(spec, str):
            return self.canonical(str(spec)), {}
        if not isinstance(spec, Mapping):
            raise ConfigurationError(
                f"{self.family} must be a name or a mapping with a name, but is {spec!r} ({type(spec).__name__}); "
                f"names: {', '.join(self.names())}"
            )
        arguments = dict(spec)
        if "class_path" in arguments:
            name, own = str(arguments.pop("class_path")), arguments.pop("init_args", None) or {}
            return self.canonical(name), arguments | own
        if not isinstance(name := arguments.pop("name", None), str):
            raise ConfigurationError(f"{self.family} spec {dict(spec)!r} has no name; add one of: {', '.join(self.names())}")
        return self.canonical(str(name)), arguments

    def resolve(self, spec: Spec, *, path: str = "") -> ResolvedSpec:
        """Resolve a spec, with every default written out, including those of nested specs and of specs inside lists and mappings.

        This is the only place that looks names up, follows class paths, checks arguments and types, and fills in defaults. A resolved
        spec is returned unchanged. The path of a registered class becomes its name: a component has one spec, and specs that resolve to
        equal specs build the same component.

        Arguments that a component takes from the data module (`from_data`) may be missing until it is built.

        Args:
            spec: A name, or a mapping with a name and arguments.
            path: The location of the spec, such as `layers[1].attention`; error messages begin with it.

        Raises:
            ConfigurationError: An unknown name or argument, a value of the wrong type, or a missing argument.

        Example:
            >>> import attnkit
            >>> attnkit.norms.resolve("rms_norm")
            ResolvedSpec({'name': 'rms_norm', 'eps': 1e-06, 'learned': True})
        """
        if isinstance(spec, ResolvedSpec) and spec.registry is self:
            return spec
        try:
            name, given = self.split(spec)
            name = self.name_of(self.get(name), name) if "." in name else name
            declared = {a.name: a for a in self.arguments(name)}
            if unknown := [key for key in given if key not in declared]:
                raise ConfigurationError(self._unknown_argument(name, str(unknown[0]), declared, given))
            absent = [a for a in declared.values() if a.name not in given]
            supplied = self.from_data(name)
            if missing := [a for a in absent if a.required and a.name not in supplied and not self._is_foreign(name)]:
                raise ConfigurationError(self._missing(name, missing))
        except ConfigurationError as error:
            raise _located(error, path) from error
        values = {key: self.checked(declared[key], value, of=name, path=path) for key, value in given.items()}
        defaults = [a for a in absent if not a.required and a.name not in supplied]
        values |= {a.name: a.written_default(path=f"{path}.{a.name}".lstrip(".")) for a in defaults}
        return ResolvedSpec(self, name, {key: values[key] for key in declared if key in values})

    def checked(self, argument: Argument, value: Any, *, of: str, path: str = "") -> Any:
        """Check and resolve the value of an argument of the component `of`. Numbers of attnkit's and torch's components must be finite.

        Raises:
            ConfigurationError: The value is wrong; the message names the component and the argument.
        """
        try:
            resolved = argument.resolve(value, path=f"{path}.{argument.name}".lstrip("."))
            if of in self.built_in() and not is_finite(resolved):
                raise WrongType(f"must be finite, but is {resolved}")
            return resolved
        except WrongType as error:
            raise _located(f"{self.family} {of!r}: {argument.name} {error}", path) from None

    def is_named(self, name: str) -> bool:
        """Return whether specs of a component have its name; those of a dataclass in its own slot have only its fields."""
        return True

    def from_data(self, name: str) -> Mapping[str, str]:
        """Return the arguments of a component that come from the data module, mapped to the data module's attributes."""
        return getattr(self.get(name), "from_data", {})

    def arguments(self, name: str) -> tuple[Argument, ...]:
        """Return the arguments that a user may set for `name`, without those that the parent passes."""
        found = [argument for argument in parameters(self.get(name)).values() if argument.name not in self.given]
        if name in self.built_in():
            return tuple(found)
        return tuple(replace(argument, annotation=_with_slots(argument.annotation)) for argument in found)

    def describe(self, name: str) -> Description:
        """Return the documentation of `name`: equation, paper, arguments, file and line."""
        return Description.of(self.get(name), family=self.family, name=name, arguments=self.arguments(name), given=self.given)

    def _missing(self, name: str, missing: Sequence[Argument]) -> str:
        names = [argument.name for argument in missing]
        link = ", or give the data module an attribute of this name" if self._is_foreign(name) else ""
        owner, key = (f"{self.family} {name!r}", f"name: {name}, ") if self.is_named(name) else (self.family, "")
        return f"{owner} needs {', '.join(names)}: add it, as in {{{key}{names[0]}: ...}}{link}"

    def _is_foreign(self, name: str) -> bool:
        """Return whether this is a user's own class to which other parts of a recipe supply arguments."""
        return self.linked and name not in self.built_in()

    def _unknown_argument(self, name: str, key: str, declared: Mapping[str, Argument], given: Mapping[str, Any]) -> str:
        if key in self.given:
            return f"{self.family} {name!r} receives {key!r} from its parent; remove it from the spec"
        valid = ", ".join(declared) or "none"
        hint = _argument_of_a_slot(key, declared.values(), given) or nearest(key, declared)
        return f"{self.family} {name!r} has no argument {key!r}.{hint} Its arguments: {valid}."


def _argument_of_a_slot(key: str, declared: Iterable[Argument], given: Mapping[str, Any]) -> str:
    """Return ` It is an argument of mixer 'multi_head': ...` if a component in one of the slots has the argument `key`."""
    for slot in declared:
        spec = given.get(slot.name, None if slot.required else slot.default)
        if slot.registry is None or not (isinstance(spec, str) or (isinstance(spec, Mapping) and spec.keys() & {"name", "class_path"})):
            continue
        inner = slot.registry.split(spec)[0]
        if inner in slot.registry.names() and key in {argument.name for argument in slot.registry.arguments(inner)}:
            return f" It is an argument of {slot.registry.family} {inner!r}: {slot.name}: {{name: {inner}, {key}: ...}}."
    return ""


def _located(message: object, path: str) -> ConfigurationError:
    return ConfigurationError(f"{path}: {message}" if path else str(message))


class Objects(Registry):
    """A class and its subclasses by class path: the slot of an argument such as `net: nn.Module` of a user's own class.

    Example:
        >>> from json import JSONEncoder
        >>> Objects(JSONEncoder).build({"name": "json.JSONEncoder", "indent": 2}).encode([1])
        '[\\n  1\\n]'
    """

    def __init__(self, cls: type) -> None:
        super().__init__("", family=cls.__name__, package="")
        self.cls = cls

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _objects_of, (self.cls,)

    @override
    def get(self, name: str) -> Any:
        found = check_class(find(name), name, family=self.family, bases=())
        if not issubclass(found, self.cls):
            raise ConfigurationError(f"{name!r} cannot be used as {self.family}: the class must inherit from {self.cls.__qualname__}")
        return found

    @override
    def takes(self, value: Any) -> bool:
        """Return whether a value is a class path, alone or in a mapping; it may also be an object from the data module."""
        name = value.get("class_path", value.get("name")) if isinstance(value, Mapping) else value
        return isinstance(name, str) and "." in name


class Fields(Objects):
    """A dataclass: the slot of an argument such as `options: Options`, whose spec is a mapping of fields. A subclass has a class path.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Options:
        ...     rate: float = 0.1
        ...     betas: tuple[float, float] = (0.9, 0.99)
        >>> slot = Fields(Options)
        >>> slot.resolve(Options(rate=0.5)), slot.build({"rate": 0.5})
        (ResolvedSpec({'rate': 0.5, 'betas': [0.9, 0.99]}), Options(rate=0.5, betas=(0.9, 0.99)))
        >>> slot.build({"raet": 0.5})
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: Options has no field 'raet'. Did you mean 'rate'? Its fields: rate, betas.
    """

    takes_objects = False

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self.path = f"{cls.__module__}.{cls.__qualname__}"

    @override
    def get(self, name: str) -> Any:
        return self.cls if name == self.path else super().get(name)

    @override
    def takes(self, value: Any) -> bool:
        return isinstance(value, Mapping | self.cls) or super().takes(value)

    @override
    def over(self, default: Any, value: Any) -> Any:
        if not isinstance(value, Mapping) or isinstance(value, ResolvedSpec) or self._has_path(value) or not isinstance(default, self.cls):
            return value
        name, whole = self.split(default)[0], _over_fields(default, value)
        return {"name": name, **whole} if self.is_named(name) else whole

    @override
    def split(self, spec: Any) -> tuple[str, dict[str, Any]]:
        if isinstance(spec, self.cls):
            return f"{type(spec).__module__}.{type(spec).__qualname__}", _fields_of(spec)
        if isinstance(spec, ResolvedSpec) or not isinstance(spec, Mapping) or self._has_path(spec):
            return super().split(spec)
        return self.path, dict(spec)

    @override
    def is_named(self, name: str) -> bool:
        return name != self.path

    def _has_path(self, spec: Mapping[str, Any]) -> bool:
        """Return whether a mapping has a class path, not only fields, one of which may be called `name`."""
        named = spec.get("name")
        return "class_path" in spec or named == self.path or ("name" not in parameters(self.cls) and isinstance(named, str))

    @override
    def _unknown_argument(self, name: str, key: str, declared: Mapping[str, Argument], given: Mapping[str, Any]) -> str:
        of = name.rpartition(".")[2]
        return f"{of} has no field {key!r}.{nearest(key, declared)} Its fields: {', '.join(declared) or 'none'}."


def _fields_of(instance: Any) -> dict[str, Any]:
    return {f.name: getattr(instance, f.name) for f in fields(instance) if f.init}


def _over_fields(default: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass with those given in their places, also inside its dataclasses."""
    whole = _fields_of(default)
    return whole | {k: _over_fields(whole[k], v) if is_dataclass(whole.get(k)) and isinstance(v, Mapping) else v for k, v in given.items()}


@cache
def _objects_of(cls: type) -> Objects:
    return Fields(cls) if is_dataclass(cls) else Objects(cls)


_PLAIN = ("builtins", "collections.abc", "pathlib", "types", "typing")  # modules whose classes are written as plain data


def _with_slots(annotation: Any) -> Any:
    """Return an annotation in which each class of objects is a slot."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if is_union(annotation):
        return Union[tuple(_with_slots(part) for part in inside)]  # noqa: UP007
    if origin in (list, tuple, dict):
        return origin[tuple(part if part is Ellipsis else _with_slots(part) for part in inside)]
    is_object = inspect.isclass(annotation) and origin is None and annotation.__module__ not in _PLAIN
    return Annotated[annotation, _objects_of(annotation)] if is_object else annotation


def _object(value: Any) -> Any:
    """Return the object that a spec of `Objects` describes, and any other value unchanged."""
    return value.registry.build(value) if isinstance(value, ResolvedSpec) and isinstance(value.registry, Objects) else value
