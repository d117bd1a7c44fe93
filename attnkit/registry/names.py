"""The names of one family, and their classes."""

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, TypeVar

from attnkit.registry.arguments import Family, parameters
from attnkit.registry.class_path import check_class, find
from attnkit.registry.docstrings import inherit
from attnkit.registry.errors import ConfigurationError, nearest

ENTRY_POINT_GROUP = "attnkit.components"

C = TypeVar("C", bound=type)


class Names(Family):
    """Classes by name: built in, registered, provided by plugins, or given by import path. `Registry` documents the arguments."""

    _all: ClassVar[dict[str, "Names"]] = {}  # by attribute, the prefix of entry points
    paths: ClassVar[str] = r"\."
    """Pattern of the strings that select a component without being a name, such as import paths."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Third-party packages whose classes have names in this registry."""

    def __init__(
        self,
        attribute: str,
        *,
        family: str,
        package: str | None = None,
        given: Iterable[str] = (),
        built_in: Iterable[str] = (),
        bases: Iterable[str] = (),
        linked: bool = False,
    ) -> None:
        self.attribute = attribute
        if attribute:
            self._all.setdefault(attribute, self)
        self.family = family
        self.package = f"attnkit.{family}" if package is None else package
        self.given = frozenset(given)
        self._built_in = set(built_in)
        self.bases = tuple(bases)
        self.linked = linked
        self._classes: dict[str, type] = {}
        self._overridden: set[str] = set()
        self._broken: dict[str, str] = {}
        self.version = 0  # changes with each registration

    def __repr__(self) -> str:
        return f"Registry({self.attribute}: {', '.join(self.names())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _registry, (self.attribute,)  # unpickling in another process returns that process's registry

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> list[str]:
        """Return every name, sorted: built-in, registered and provided by installed plugins. Nothing is imported."""
        return sorted((self.built_in() | set(self.plugins) | set(self._classes)) - set(self._broken))

    def built_in(self) -> set[str]:
        """Return the names that attnkit provides, each a module of the family's package."""
        return self._built_in

    def get(self, name: str) -> Any:
        """Return the class that is registered as `name`, or whose import path is `name`, importing it if necessary.

        Raises:
            ConfigurationError: There is no such name or class, its plugin is broken, or two packages claim the name.
        """
        if "." in (name := self.canonical(name)):
            return check_class(find(name), name, family=self.family, bases=self.bases)
        self._check_claims(name)
        if name not in self._classes:
            self._load(name)
        return self._classes[name]

    def classes(self) -> dict[str, Any]:
        """Return the classes by name, importing them all, without those of broken plugins, of which it warns."""
        found = {}
        for name in self.names():
            with suppress(ConfigurationError):
                found[name] = self.get(name)
        return found

    def register(self, name: str, *, override: bool = False) -> Callable[[C], C]:
        """Return a class decorator that registers a component as `name`, and leaves the class as it is.

        Args:
            name: A lower-case identifier.
            override: Whether to replace an existing component of this name; otherwise a taken name is an error.

        Raises:
            ConfigurationError: The name is taken or not an identifier, or an argument of the class is called `name`.
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
                return cls  # the replacement was registered before the built-in module was imported: keep it
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
            if is_built_in:
                inherit(cls, cls.__mro__)  # for `help`; a user's own class stays as it is
            return cls

        return decorate

    def canonical(self, name: str) -> str:
        """Return the registered name of a class of attnkit or torch given by its import path; any other `name` unchanged.

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
            return name  # `get` reports the error
        return next((n for n in self._names_of(found) if n in self.built_in() and self.get(n) is found), name)

    def name_of(self, cls: type, path: str | None = None) -> str:
        """Return the name under which a class is registered, or else `path` (default: its import path).

        Example:
            >>> import attnkit
            >>> attnkit.norms.name_of(attnkit.norms.get("rms_norm")), attnkit.norms.name_of(dict)
            ('rms_norm', 'builtins.dict')
        """
        return next((name for name, known in self._classes.items() if known is cls), path or f"{cls.__module__}.{cls.__qualname__}")

    def registered(self, name: str) -> type | None:
        """Return the class that is registered as `name`, or None if there is none, or it has not been imported."""
        return self._classes.get(name)

    def replacement(self, name: str) -> str | None:
        """Return the import path of the class that replaces the built-in component `name`, or None.

        Example:
            >>> import attnkit
            >>> attnkit.norms.replacement("rms_norm")
        """
        cls = self.registered(name) if name in self._overridden and name in self.built_in() else None
        return None if cls is None else f"{cls.__module__}.{cls.__qualname__}"

    def _names_of(self, cls: Any) -> list[str]:
        """Return the candidate built-in names of a class of attnkit or torch."""
        return [n for n, known in self._classes.items() if known is cls]

    def by_class_name(self, name: str) -> Any:
        """Return the built-in class called `name`, for packages that import their classes lazily; or raise an AttributeError.

        Example:
            >>> import attnkit
            >>> attnkit.norms.by_class_name("RMSNorm")
            <class 'attnkit.norm.rms_norm.RMSNorm'>
        """
        for known in self._built_in:
            if known.replace("_", "") == name.lower() and (found := self.get(known)).__name__ == name:
                return found
        raise AttributeError(f"module {self.package!r} has no attribute {name!r}")

    def _check_claims(self, name: str) -> None:
        """Raise if two packages provide `name`: the choice must not depend on the order of imports."""
        claimants = [_distribution(p) for p in self.plugins.get(name, [])] + (["attnkit"] if name in self.built_in() else [])
        if len(claimants) > 1 and name not in self._overridden:
            raise ConfigurationError(
                f"{self.family} {name!r} is claimed by {' and '.join(sorted(claimants))}; uninstall one of them, or rename the component"
            )

    def _load(self, name: str) -> None:
        plugins = self.plugins.get(name, [])
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
        """Return ` 'rotary' is a position.`, for example, if other families have this name."""
        families = [r.family for r in self._all.values() if r is not self and name in r]
        return f" {name!r} is {' and '.join(f'an {f}' if f[0] in 'aeiou' else f'a {f}' for f in families)}." if families else ""

    def _import(self, name: str) -> None:
        importlib.import_module(f"{self.package}.{name}")

    def _load_plugin(self, name: str, plugin: EntryPoint) -> None:
        try:
            self.register(name)(check_class(plugin.load(), plugin.value, family=self.family, bases=self.bases))
        except Exception as error:  # a plugin may raise anything, and must not break the others
            self._broken[name] = (
                f"{self.family} {name!r} comes from the plugin {_distribution(plugin)!r} ({plugin.value}), "
                f"which cannot be loaded: {type(error).__name__}: {error}"
            )
            warnings.warn(self._broken[name], stacklevel=4)

    @cached_property
    def plugins(self) -> dict[str, list[EntryPoint]]:
        """The entry points of installed plugins by the name that they provide; several if they claim the same one."""
        found: dict[str, list[EntryPoint]] = {}
        for point in _points(*sys.path):
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


@cache
def _points(*path: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of the distributions on the import path, which the registries share: finding them reads many files."""
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _registry(attribute: str) -> Names:
    return Names._all[attribute]


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "?"


def registered_name(path: str) -> str:
    """Return the registered name, if `path` is the import path of a built-in class of any family, else `path`.

    Example:
        >>> registered_name("attnkit.attention.additive.Additive"), registered_name("my_package.additive.MyOwn")
        ('additive', 'my_package.additive.MyOwn')
    """
    return next((name for names in Names._all.values() if (name := names.canonical(path)) != path), path)


def name_of_path(path: str) -> str:
    """Return the registered name, if `path` is the import path of a class of any family that is built in or imported, else `path`.

    Example:
        >>> name_of_path("torch.optim.AdamW"), name_of_path("my_package.additive.MyOwn")
        ('adamw', 'my_package.additive.MyOwn')
    """
    if (known := registered_name(path)) != path:
        return known
    try:
        cls = find(path, may_import=False)
    except ConfigurationError:
        return path
    return next((name for names in Names._all.values() if (name := names.name_of(cls, path)) != path), path)
