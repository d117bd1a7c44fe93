"""Argument links (LightningCLI's `link_arguments`) with at least one end in the model or the data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from attnkit.registry import ConfigurationError, ResolvedSpec
from attnkit.train.output import say


@dataclass(frozen=True)
class Link:
    """Sets the target to the source's value, or to `compute` of the sources' values."""

    sources: tuple[str, ...]  # keys such as `data.batch_size`
    target: str  # a key of `model` or `data`
    compute: Callable[..., Any] | None  # called with the sources' values, in order
    apply_on: str  # `parse`: sources are arguments; `instantiate`: sources are the data module or its attributes

    def apply(self, specs: dict[str, ResolvedSpec], read: Callable[[str], Any]) -> None:
        """Set the target in the specs of `model` and `data`; raise if it does not exist. `read` returns the value of a source."""
        values = [read(key) for key in self.sources]
        family, *path = _parts(self.target)
        if family not in specs or not path:
            raise ConfigurationError(f"link to {self.target}: the target must be an argument of the model or the data")
        specs[family] = _replace_at(specs[family], path, values[0] if self.compute is None else self.compute(*values), self.target)

    def overrides(self, layer: Mapping[str, Any]) -> bool:
        """Return whether a layer of a recipe names the target.

        Example:
            >>> link = Link(("data.batch_size",), "model.init_args.d_model", None, "parse")
            >>> link.overrides({"model": {"d_model": 8}}), link.overrides({"model": "my_project.MyModule"})
            (True, False)
        """
        value: Any = layer
        for part in _parts(self.target):
            if not isinstance(value, Mapping) or part not in value:
                return False
            value = value[part]
        return True


def apply_links(
    links: Iterable[Link],
    specs: dict[str, ResolvedSpec],
    read: Callable[[str], Any],
    *,
    named: Mapping[str, Any],
    flags: Mapping[str, Any],
) -> None:
    """Apply links to specs; raise if the layer of the `flags` names another value of a target, and note if files (`named`) do."""
    for link in links:
        is_named = link.overrides(named)
        before = argument_at(specs, link.target) if is_named else None
        link.apply(specs, read)
        if is_named and before != (after := argument_at(specs, link.target)):
            reason = f"it is linked to {' and '.join(link.sources)}, which sets it to {after}"
            if link.overrides(flags):
                raise ConfigurationError(f"{link.target} cannot be {before}: {reason}")
            say(f"note: {link.target}={before} in the recipe has no effect: {reason}")


def argument_at(specs: dict[str, ResolvedSpec], key: str) -> Any:
    """Return an argument of the model or the data, such as `model.stack.d_model`; raise if it does not exist."""
    family, *path = _parts(key)
    try:
        return reduce(lambda value, part: value[part], path, specs[family])
    except (KeyError, TypeError) as error:
        raise ConfigurationError(f"link from {key}: there is no such argument") from error


def attribute_at(data: object, key: str) -> Any:
    """Return the data module's attribute for a key such as `data.num_classes`, or the module itself for `data`."""
    try:
        return reduce(getattr, _parts(key)[1:], data)
    except AttributeError as error:
        raise ConfigurationError(f"link from {key}: {error}") from error


def _parts(key: str) -> list[str]:
    return [part for part in key.split(".") if part != "init_args"]


def _replace_at(spec: ResolvedSpec, path: Sequence[str], value: Any, target: str) -> ResolvedSpec:
    if len(path) > 1:
        nested = spec.get(path[0])
        if not isinstance(nested, ResolvedSpec):
            raise ConfigurationError(f"link to {target}: {path[0]} is not a component here")
        value = _replace_at(nested, path[1:], value, target)
    return spec.replace(**{path[0]: value})
