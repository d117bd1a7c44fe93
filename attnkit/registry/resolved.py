"""Resolved specs: what a component is built from, with nothing left to look up."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from attnkit.registry.values import plain_data

if TYPE_CHECKING:
    from attnkit.registry.base import Registry


@dataclass(frozen=True, eq=False, repr=False)
class ResolvedSpec(Mapping[str, Any]):
    """A spec whose names are looked up, whose values have the types of their arguments, and whose defaults are written out.

    `Registry.resolve` makes it, once; `Registry.build` builds from it without looking at it again. The slots in it hold resolved specs.
    It reads as a mapping of `name` and the arguments, and equals any mapping of the same content.

    Attributes:
        registry: The family of the component.
        name: Its name there, or the path of its class.

    Example:
        >>> import attnkit
        >>> spec = attnkit.norms.resolve("rms_norm")
        >>> spec
        ResolvedSpec({'name': 'rms_norm', 'eps': 1e-06})
        >>> attnkit.norms.resolve(spec) is spec, spec.plain(), spec == {"name": "rms_norm", "eps": 1e-6}
        (True, {'name': 'rms_norm', 'eps': 1e-06}, True)
    """

    registry: "Registry"
    name: str
    _arguments: dict[str, Any]

    @override
    def __getitem__(self, key: str) -> Any:
        return self.name if key == "name" else self._arguments[key]

    @override
    def __iter__(self) -> Iterator[str]:
        yield "name"
        yield from self._arguments

    @override
    def __len__(self) -> int:
        return 1 + len(self._arguments)

    @override
    def __repr__(self) -> str:
        return f"ResolvedSpec({_dictionary(self)})"

    @property
    def arguments(self) -> dict[str, Any]:
        """A copy of the arguments, as the component's constructor takes them."""
        return {key: _copied(value) for key, value in self._arguments.items()}

    @property
    def unresolved(self) -> dict[str, Any]:
        """A copy of the arguments in which specs are mappings again; values that are objects stay as they are."""
        return {key: _dictionary(value) for key, value in self._arguments.items()}

    def plain(self) -> dict[str, Any]:
        """Return the spec as plain data, from which `resolve` makes it again.

        Raises:
            ConfigurationError: A value is not plain data, but an object.
        """
        return {"name": self.name} | {key: plain_data(value, path=key) for key, value in self._arguments.items()}

    def replace(self, **arguments: Any) -> "ResolvedSpec":
        """Return the spec with other values for some arguments; only these are resolved.

        Raises:
            ConfigurationError: There is no such argument, or a value is wrong.

        Example:
            >>> import attnkit
            >>> attnkit.norms.resolve("rms_norm").replace(eps=0.5)
            ResolvedSpec({'name': 'rms_norm', 'eps': 0.5})
        """
        return self.registry.replaced(self, arguments)


def _copied(value: Any) -> Any:
    """Return a value with new lists and mappings, so that no component changes the spec of another; resolved specs stay as they are."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _dictionary(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _dictionary(item) for key, item in value.items()}
    return [_dictionary(item) for item in value] if isinstance(value, list) else value
