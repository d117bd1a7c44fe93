"""Resolved specs: specs from which a component is built without any further lookup."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from attnkit.registry.errors import ConfigurationError
from attnkit.registry.values import plain_data

if TYPE_CHECKING:
    from attnkit.registry.base import Registry


@dataclass(frozen=True, eq=False, repr=False)
class ResolvedSpec(Mapping[str, Any]):
    """A spec with names looked up, values converted to the types of their arguments, and defaults written out.

    `Registry.resolve` creates it once; `Registry.build` builds from it without further checks. Its slots hold resolved specs.
    It is a mapping of `name` (except for a dataclass) and the arguments, and equals any mapping with the same content.

    Attributes:
        registry: The registry of the component's family.
        name: The component's registered name, or its class path.

    Example:
        >>> import attnkit
        >>> spec = attnkit.norms.resolve("rms_norm")
        >>> spec
        ResolvedSpec({'name': 'rms_norm', 'eps': 1e-06, 'learned': True})
        >>> attnkit.norms.resolve(spec) is spec, spec.plain(), spec == {"name": "rms_norm", "eps": 1e-6, "learned": True}
        (True, {'name': 'rms_norm', 'eps': 1e-06, 'learned': True}, True)
    """

    registry: "Registry"
    name: str
    _arguments: dict[str, Any]

    @override
    def __getitem__(self, key: str) -> Any:
        return self.name if key == "name" and self._is_named else self._arguments[key]

    @override
    def __iter__(self) -> Iterator[str]:
        if self._is_named:
            yield "name"
        yield from self._arguments

    @override
    def __len__(self) -> int:
        return self._is_named + len(self._arguments)

    @override
    def __repr__(self) -> str:
        return f"ResolvedSpec({_copied(self, keep=lambda _: False)})"

    @property
    def _is_named(self) -> bool:
        return self.registry.is_named(self.name)

    @property
    def arguments(self) -> dict[str, Any]:
        """A copy of the arguments for the component's constructor."""
        return {key: _copied(value) for key, value in self._arguments.items()}

    @property
    def unresolved(self) -> dict[str, Any]:
        """A copy of the arguments with nested specs as plain mappings, except those of objects given by class path."""
        return {key: _copied(value, keep=lambda spec: not spec.registry.attribute) for key, value in self._arguments.items()}

    @property
    def unread(self) -> dict[str, str]:
        """The arguments that are set but have no effect, each with the reason.

        A component may keep an argument without effect, so that another argument can be swapped by itself; its static method `unread`,
        which is passed the arguments, says so. An argument of a spec in a slot is `slot.argument`. All others without effect are errors.

        Example:
            >>> import attnkit
            >>> attnkit.stacks.resolve({"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "mixer": "rwkv"}).unread
            {'num_heads': 'no mixer of this stack reads it (mixers: rwkv)'}
        """
        find = getattr(self.registry.get(self.name), "unread", None)
        try:
            return {} if find is None else dict(find(self._arguments))
        except ValueError:  # building the component refuses the arguments, and says why
            return {}

    def plain(self) -> dict[str, Any]:
        """Return the spec as plain data, which `resolve` turns back into this spec.

        Raises:
            ConfigurationError: A value is an object, not plain data.
        """
        return {key: plain_data(value, path=key) for key, value in self.items()}

    def replace(self, **arguments: Any) -> "ResolvedSpec":
        """Return a copy of the spec with some arguments replaced; only these are resolved.

        Raises:
            ConfigurationError: There is no such argument, or a value is wrong.

        Example:
            >>> import attnkit
            >>> attnkit.norms.resolve("rms_norm").replace(eps=0.5)
            ResolvedSpec({'name': 'rms_norm', 'eps': 0.5, 'learned': True})
        """
        declared = {a.name: a for a in self.registry.arguments(self.name)}
        if unknown := [key for key in arguments if key not in declared]:
            raise ConfigurationError(self.registry._unknown_argument(self.name, unknown[0], declared, self._arguments))
        values = self.arguments | {key: self.registry.checked(declared[key], value, of=self.name) for key, value in arguments.items()}
        return ResolvedSpec(self.registry, self.name, {key: values[key] for key in declared if key in values})


def _copied(value: Any, *, keep: Callable[[ResolvedSpec], bool] = lambda _: True) -> Any:
    """Copy the mappings and lists in a value, so that no component can change another's spec, but `keep` some resolved specs."""
    if isinstance(value, ResolvedSpec) and keep(value):
        return value
    if isinstance(value, Mapping):
        return {key: _copied(item, keep=keep) for key, item in value.items()}
    return [_copied(item, keep=keep) for item in value] if isinstance(value, list) else value
