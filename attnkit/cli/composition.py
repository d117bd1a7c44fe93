"""From a merged recipe to complete specs: checked against the registries, with every default written out."""

import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from attnkit.cli.recipe import Word, merge
from attnkit.registry import Argument, ConfigurationError, Registry, WrongType, datasets, tasks


def complete_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the complete specs of `model` and `data`.

    Raises:
        ConfigurationError: One of them is missing or wrong; the message names the place, as in `model.stack.attention`.
    """
    for key, registry, example in (("model", tasks, "seq2seq"), ("data", datasets, "text_pairs")):
        if recipe.get(key) is None:
            raise ConfigurationError(
                f"no {key} is given; add --config RECIPE (as in --config g2p/transformer) or --{key} {example}. "
                f"Names: {', '.join(registry.names()) or 'none'}."
            )
    return {"model": complete(recipe["model"], tasks, path="model"), "data": complete(recipe["data"], datasets, path="data")}


def complete(spec: Any, registry: Registry, *, path: str) -> dict[str, Any]:
    """Return `spec` as a mapping with every argument written out, nested specs too, in the order of the signatures.

    Arguments that a task takes from the data module (`from_data`) are left out.

    Args:
        spec: A name, or a mapping. One without a name adds to the default of its slot.
        registry: Where its name is looked up.
        path: Where it stands in the recipe, for messages.

    Raises:
        ConfigurationError: A wrong name, argument or value.

    Example:
        >>> from attnkit.registry import norms
        >>> complete("rms_norm", norms, path="model.stack.norm")
        {'name': 'rms_norm', 'eps': 1e-06}
    """
    given = {"name": str(spec)} if isinstance(spec, str) else dict(spec) if isinstance(spec, Mapping) else spec
    try:
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            registry.parse(given)  # raises, and says what a spec is
        name, given = registry.split({**given, "name": str(given["name"])})
        from_data = data_arguments(registry, name)
        if taken := sorted(set(from_data) & set(given)):
            raise ConfigurationError(f"{registry.family} {name!r} takes {taken[0]!r} from the data module; leave it out")
        completed: dict[str, Any] = {"name": name}
        for argument in registry.arguments(name):
            if argument.name in given or not (argument.required or argument.name in from_data):
                completed[argument.name] = _complete_argument(argument, given.pop(argument.name, argument.default), path=path)
        registry.parse({**completed, **given, **dict.fromkeys(from_data)})  # None stands for what is still to come
    except _Located:
        raise
    except ConfigurationError as error:
        raise _Located(f"{path}: {error}") from error
    return completed


def data_arguments(registry: Registry, name: str) -> Mapping[str, str]:
    """Return the arguments of a task that come from the data module, each with the attribute that holds it."""
    return getattr(registry.get(name), "from_data", {})


class _Located(ConfigurationError):
    """A message that says already where the mistake is."""


def _complete_argument(argument: Argument, value: Any, *, path: str) -> Any:
    if not argument.registries:
        return _typed(value, argument.annotation)
    if value is None or (isinstance(value, Word) and value.value is None):
        return None
    if isinstance(value, Mapping) and "name" not in value and isinstance(argument.default, str | Mapping):
        value = merge(argument.default, value, dropped=[])

    def finish(registry: Registry, spec: Any, place: str) -> dict[str, Any]:
        return complete(spec, registry, path=place)

    try:
        return argument.visit(value, finish, path=f"{path}.{argument.name}")
    except WrongType:
        return value  # the registry says what is wrong with it


def _typed(value: Any, annotation: Any) -> Any:
    """Return a `Word` as the type that its argument asks for, at any depth; anything else as plain data."""
    if isinstance(value, Mapping):
        return {key: _typed(item, Any) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_typed(item, Any) for item in value]
    if not isinstance(value, Word):
        return value
    read = value.value
    wanted = _members(annotation)
    is_wanted = read in wanted or type(read) in wanted or (isinstance(read, int) and float in wanted)
    return str(value) if not is_wanted and (str in wanted or str(value) in wanted) else read


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types, and the values of a Literal, that an annotation is a union of."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for part in get_args(annotation) for member in _members(part))
    return get_args(annotation) if get_origin(annotation) is Literal else (annotation,)


def outline(spec: Mapping[str, Any], registry: Registry, *, role: str, indent: int = 0) -> list[str]:
    """Return one line for each component of a complete spec: its role, its name and the plain arguments that are not at their default.

    Example:
        >>> from attnkit.registry import norms
        >>> outline({"name": "rms_norm", "eps": 1e-5}, norms, role="norm")
        ['norm: rms_norm (eps=1e-05)']
    """
    declared = {a.name: a for a in registry.arguments(spec["name"])}
    chosen = {k: v for k, v in spec.items() if k in declared and declared[k].registry is None and v != _typed(declared[k].default, Any)}
    arguments = ", ".join(f"{k}={v}" for k, v in chosen.items())
    lines = [f"{'  ' * indent}{role}: {spec['name']}" + (f" ({arguments})" if arguments else "")]
    for key, argument in declared.items():
        if argument.registry is not None and spec.get(key) is not None:
            lines += outline(spec[key], argument.registry, role=key, indent=indent + 1)
    return lines
