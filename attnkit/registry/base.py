"""The registry of one family."""

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, TypeVar

from attnkit.registry.arguments import Argument, Family, WrongType, parameters
from attnkit.registry.class_path import check_class, find
from attnkit.registry.description import Description
from attnkit.registry.errors import ConfigurationError, nearest
from attnkit.registry.resolved import ResolvedSpec

ENTRY_POINT_GROUP = "attnkit.components"

Spec = str | Mapping[str, Any]
C = TypeVar("C", bound=type)


class Registry(Family):
    """The components of one family, by name.

    Args:
        attribute: The name of this registry in `attnkit`, such as `"attentions"`; entry points use it as their prefix.
        family: What one member is called in messages, such as `"attention"`.
        package: The package with one module per built-in name.
        given: The constructor arguments that the parent passes (widths and the like). A component takes those that it
            needs, and its user never writes them.
        built_in: The names that attnkit provides.
        bases: Import paths of the classes of which a class that is named by its path must inherit one.
        linked: Whether other parts of a recipe may give arguments to a user's own class, which is named by its path: they may be missing
            until it is built. Such a class gets specs as plain data, which it can save.

    Example:
        >>> import attnkit
        >>> attnkit.norms.names()
        ['layer_norm', 'rms_norm']
        >>> attnkit.norms.build({"name": "rms_norm", "eps": 1e-5}, d_model=8)
        RMSNorm(8, eps=1e-05)
    """

    _all: ClassVar[dict[str, "Registry"]] = {}  # by attribute: what an entry point may begin with
    libraries: ClassVar[tuple[str, ...]] = ()
    """Packages of others whose classes have names in this registry."""

    def __init__(
        self,
        attribute: str,
        *,
        family: str,
        package: str,
        given: Iterable[str] = (),
        built_in: Iterable[str] = (),
        bases: Iterable[str] = (),
        linked: bool = False,
    ) -> None:
        self.attribute = attribute
        self._all.setdefault(attribute, self)
        self.family = family
        self.package = package
        self.given = frozenset(given)
        self._built_in = set(built_in)
        self.bases = tuple(bases)
        self.linked = linked
        self._classes: dict[str, type] = {}
        self._overridden: set[str] = set()
        self._broken: dict[str, str] = {}
        self.version = 0  # of what is registered

    def __repr__(self) -> str:
        return f"Registry({self.attribute}: {', '.join(self.names())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _registry, (self.attribute,)  # a copy in another process is that process's own

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> list[str]:
        """Return every name, sorted: built-in, registered and provided by installed plugins. Imports none of them."""
        return sorted((self.built_in() | set(self._plugins) | set(self._classes)) - set(self._broken))

    def built_in(self) -> set[str]:
        """Return the names that attnkit itself provides, each a module of the family's package."""
        return self._built_in

    def get(self, name: str) -> Any:
        """Return the class that is registered as `name`, or whose import path it is, importing it if need be.

        Raises:
            ConfigurationError: No such name or class, or its plugin is broken, or two parties claim it.
        """
        if "." in (name := self.canonical(name)):
            return check_class(find(name), name, family=self.family, bases=self.bases)
        self._check_claims(name)
        if name not in self._classes:
            self._load(name)
        return self._classes[name]

    def register(self, name: str, *, override: bool = False) -> Callable[[C], C]:
        """Return a class decorator that registers a component as `name`.

        Args:
            name: A lower-case identifier.
            override: Replace the component that has this name. Without it, a taken name raises.

        Raises:
            ConfigurationError: The name is taken or is no identifier, or an argument of the class is called `name`.
        """
        if not (name.isidentifier() and name == name.lower()):
            raise ConfigurationError(f"{self.family} name {name!r} must be a lower-case Python identifier")

        def decorate(cls: C) -> C:
            if "name" in inspect.signature(cls).parameters:
                raise ConfigurationError(
                    f"{cls.__qualname__} has an argument called 'name', which a spec uses for the name of the component; rename it"
                )
            is_built_in = cls.__module__ == f"{self.package}.{name}"
            if is_built_in and name in self._overridden:
                return cls  # the replacement was registered before the built-in module was imported: it stays
            taken = self._classes.get(name)
            if not override:
                if taken is not None and taken is not cls:
                    raise ConfigurationError(
                        f"{self.family} {name!r} is already registered by {taken.__module__}.{taken.__qualname__}; "
                        f"choose another name, or pass override=True to replace it"
                    )
                if name in self.built_in() and not is_built_in:
                    raise ConfigurationError(
                        f"{self.family} {name!r} is built into attnkit; choose another name, or pass override=True to replace it"
                    )
            else:
                self._overridden.add(name)
            if taken is not cls:
                self.version += 1
                parameters.cache_clear()  # signatures may list the names
            self._classes[name] = cls
            self._broken.pop(name, None)
            return cls

        return decorate

    def build(self, spec: Spec, **given: Any) -> Any:
        """Build the component that `spec` describes.

        Args:
            spec: A name, or a mapping with a name and arguments.
            **given: What the parent passes; only the names in `self.given`. The component gets those that it declares.

        Raises:
            ConfigurationError: An unknown name or argument, a value of the wrong type, or a missing argument.
        """
        if unknown := set(given) - self.given:
            raise TypeError(f"a parent passes {sorted(self.given)} to {self.family} components, not {sorted(unknown)}")
        resolved = self.resolve(spec)
        cls = self.get(resolved.name)
        if self.linked and (missing := [a for a in self.arguments(resolved.name) if a.required and a.name not in resolved]):
            raise ConfigurationError(self._missing(resolved.name, missing))
        accepted = parameters(cls)
        arguments = resolved.arguments if not self._is_foreign(resolved.name) else resolved.unresolved
        return cls(**{k: v for k, v in given.items() if k in accepted}, **arguments)

    def canonical(self, name: str) -> str:
        """Return the registered name, if `name` is the import path of a class of attnkit's own or of torch's that has one; else `name`.

        Example:
            >>> import attnkit
            >>> attnkit.attentions.canonical("attnkit.attention.additive.Additive"), attnkit.optimizers.canonical("torch.optim.AdamW")
            ('additive', 'adamw')
        """
        package, _, last = name.rpartition(".")
        if package == self.package and last in self._built_in:
            return last  # its module
        if not any(name.startswith(f"{known}.") for known in (self.package, *self.libraries)):
            return name
        try:
            found = find(name, may_import=True)
        except ConfigurationError:
            return name  # whoever asks for the class says what is wrong
        return next((n for n in self._names_of(found) if n in self.built_in() and self.get(n) is found), name)

    def _names_of(self, cls: Any) -> list[str]:
        """Return the built-in names that a class of our own or of torch's may have."""
        return [n for n, known in self._classes.items() if known is cls]

    def split(self, spec: Spec) -> tuple[str, dict[str, Any]]:
        """Return the name and the arguments of a spec, unchecked. The import path of a built-in class becomes its name."""
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
        """Return what `spec` means, with every default written out, also in nested specs and in those inside lists and mappings.

        This is the only place that looks names up, follows class paths, checks arguments and types, and knows defaults. A spec that is
        resolved already is returned as it is. Two specs that resolve to equal ones build the same component.

        Arguments that a component takes from the data module (`from_data`) may be missing until it is built.

        Args:
            spec: A name, or a mapping with a name and arguments.
            path: Where it stands, such as `layers[1].attention`: messages begin with it.

        Raises:
            ConfigurationError: An unknown name or argument, a value of the wrong type, or a missing argument.

        Example:
            >>> import attnkit
            >>> attnkit.norms.resolve("rms_norm")
            ResolvedSpec({'name': 'rms_norm', 'eps': 1e-06})
        """
        if isinstance(spec, ResolvedSpec) and spec.registry is self:
            return spec
        try:
            name, given = self.split(spec)
            declared = {a.name: a for a in self.arguments(name)}
            if unknown := [key for key in given if key not in declared]:
                raise ConfigurationError(self._unknown_argument(name, unknown[0], declared))
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
        """Return a value of an argument of the component `of`, resolved.

        Raises:
            ConfigurationError: It is wrong; the message names the component and the argument.
        """
        try:
            return argument.resolve(value, path=f"{path}.{argument.name}".lstrip("."))
        except WrongType as error:
            raise _located(f"{self.family} {of!r}: {argument.name} {error}", path) from None

    def replaced(self, spec: ResolvedSpec, values: Mapping[str, Any]) -> ResolvedSpec:
        """Return a resolved spec with other values for some arguments; only these are resolved. See `ResolvedSpec.replace`."""
        declared = {a.name: a for a in self.arguments(spec.name)}
        if unknown := [key for key in values if key not in declared]:
            raise ConfigurationError(self._unknown_argument(spec.name, unknown[0], declared))
        arguments = spec.arguments | {key: self.checked(declared[key], value, of=spec.name) for key, value in values.items()}
        return ResolvedSpec(self, spec.name, {key: arguments[key] for key in declared if key in arguments})

    def from_data(self, name: str) -> Mapping[str, str]:
        """Return the arguments of a component that come from the data module, each with the attribute there that holds it."""
        return getattr(self.get(name), "from_data", {})

    def by_class_name(self, name: str) -> Any:
        """Return the built-in class that is called `name`, for a package that imports its classes when they are asked for.

        Raises:
            AttributeError: There is none.

        Example:
            >>> import attnkit
            >>> attnkit.norms.by_class_name("RMSNorm")
            <class 'attnkit.norm.rms_norm.RMSNorm'>
        """
        for known in self._built_in:
            if known.replace("_", "") == name.lower() and (found := self.get(known)).__name__ == name:
                return found
        raise AttributeError(f"module {self.package!r} has no attribute {name!r}")

    def arguments(self, name: str) -> tuple[Argument, ...]:
        """Return the arguments that a user may write for `name` (those that the parent passes are left out)."""
        return tuple(argument for argument in parameters(self.get(name)).values() if argument.name not in self.given)

    def describe(self, name: str) -> Description:
        """Return the documentation of `name`: equation, paper, arguments, file and line."""
        return Description.of(self.get(name), family=self.family, name=name, arguments=self.arguments(name), given=self.given)

    def _check_claims(self, name: str) -> None:
        """Raise if two parties provide `name`: which one is meant must not depend on what was imported first."""
        claimants = [_distribution(p) for p in self._plugins.get(name, [])] + (["attnkit"] if name in self.built_in() else [])
        if len(claimants) > 1 and name not in self._overridden:
            raise ConfigurationError(
                f"{self.family} {name!r} is claimed by {' and '.join(sorted(claimants))}; uninstall one, or have it renamed"
            )

    def _load(self, name: str) -> None:
        plugins = self._plugins.get(name, [])
        if name in self.built_in():
            self._import(name)
        elif plugins and name not in self._broken:
            self._load_plugin(name, plugins[0])
        if name not in self._classes:
            if name in self._broken:
                raise ConfigurationError(self._broken[name])
            raise ConfigurationError(
                f"unknown {self.family} {name!r}.{self._elsewhere(name) or nearest(name, self.names())} Names: {', '.join(self.names())}. "
                f"To add your own: @attnkit.{self.attribute}.register({name!r}) in a module that is imported (a recipe names it under "
                f"imports, the command line after --imports), or an entry point in the group {ENTRY_POINT_GROUP!r}."
            )

    def _elsewhere(self, name: str) -> str:
        """Return ` It is a position.` if other families have this name."""
        families = [r.family for r in self._all.values() if r is not self and name in r]
        return f" {name!r} is {' and '.join(f'an {f}' if f[0] in 'aeiou' else f'a {f}' for f in families)}." if families else ""

    def _import(self, name: str) -> None:
        importlib.import_module(f"{self.package}.{name}")

    def _load_plugin(self, name: str, plugin: EntryPoint) -> None:
        try:
            cls = plugin.load()
            if not isinstance(cls, type):
                raise TypeError(f"{plugin.value} is not a class")
            self.register(name)(cls)
        except Exception as error:  # a plugin may fail in any way, and must not break the others
            self._broken[name] = (
                f"{self.family} {name!r} comes from the plugin {_distribution(plugin)!r} ({plugin.value}), "
                f"which cannot be loaded: {type(error).__name__}: {error}"
            )
            warnings.warn(self._broken[name], stacklevel=4)

    def _missing(self, name: str, missing: Sequence[Argument]) -> str:
        names = [argument.name for argument in missing]
        link = ", or let the data module have an attribute of this name" if self._is_foreign(name) else ""
        return f"{self.family} {name!r} needs {', '.join(names)}: add it, as in {{name: {name}, {names[0]}: ...}}{link}"

    def _is_foreign(self, name: str) -> bool:
        """Return whether this is a user's own class to which others give arguments."""
        return self.linked and "." in name

    def _unknown_argument(self, name: str, key: str, declared: Iterable[str]) -> str:
        if key in self.given:
            return f"{self.family} {name!r} gets {key!r} from its parent; leave it out of the spec"
        valid = ", ".join(declared) or "none"
        return f"{self.family} {name!r} has no argument {key!r}.{nearest(key, declared)} Its arguments: {valid}."

    @cached_property
    def _plugins(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=ENTRY_POINT_GROUP):
            attribute, _, name = point.name.partition(".")
            if attribute == self.attribute and name:
                found.setdefault(name, []).append(point)
            elif attribute not in (known := sorted(self._all)) or not name:
                warnings.warn(
                    f"the entry point {point.name!r} of the plugin {_distribution(point)!r} is not 'REGISTRY.NAME' and adds nothing."
                    f"{nearest(attribute, known)} Registries: {', '.join(known)}.",
                    stacklevel=2,
                )
        return found


def _registry(attribute: str) -> Registry:
    return Registry._all[attribute]


def _located(message: object, path: str) -> ConfigurationError:
    return ConfigurationError(f"{path}: {message}" if path else str(message))


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "?"


def registered_name(path: str) -> str:
    """Return the registered name, if `path` is the import path of a built-in class of any family, else `path`.

    Example:
        >>> registered_name("attnkit.attention.additive.Additive"), registered_name("my_package.additive.MyOwn")
        ('additive', 'my_package.additive.MyOwn')
    """
    return next((name for registry in Registry._all.values() if (name := registry.canonical(path)) != path), path)
