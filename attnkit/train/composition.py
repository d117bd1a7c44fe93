"""Resolves the model and data specs of a merged recipe."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from lightning.pytorch.core.hooks import DataHooks

from attnkit.recipe import SPEC_KEYS
from attnkit.registry import FAMILIES, IMPORTS, ConfigurationError, ResolvedSpec, datasets, module_names, tasks
from attnkit.registry.class_path import find


def complete_recipe(recipe: Mapping[str, Any]) -> dict[str, ResolvedSpec]:
    """Return the resolved specs of `model` and `data`; `data` is optional if the model is a user's class with its own dataloaders."""
    for key, registry, example in (("model", tasks, "seq2seq"), ("data", datasets, "text_pairs")):
        if recipe.get(key) is None and (key == "model" or not _has_dataloaders(tasks.split(recipe["model"])[0])):
            raise ConfigurationError(
                f"missing {key}: add --config RECIPE (as in --config g2p/transformer) or --{key} {example}. "
                f"Names: {', '.join(registry.names()) or 'none'}."
            )
    families = {"model": tasks, "data": datasets}
    specs = {key: family.resolve(recipe[key], path=key) for key, family in families.items() if recipe.get(key) is not None}
    if taken := [key for key in tasks.from_data(specs["model"].name) if key in specs["model"]]:
        name = specs["model"].name
        raise ConfigurationError(f"model: task {name!r} takes {taken[0]!r} from the data module; remove it")
    return specs


def imports_of(recipe: Mapping[str, Any], *, known: Collection[str] = ()) -> list[str]:
    """Return the modules that a complete recipe needs: its `imports`, and those of registered classes that it names by their paths.

    A resolved spec has the name of such a class, which only its module registers. Modules that are `known` to the program are left out.
    """
    needed = []
    for path in _dotted({key: recipe[key] for key in SPEC_KEYS if key in recipe}):
        with suppress(ConfigurationError):  # not a class path
            cls = find(path, may_import=False)
            if not isinstance(cls, type) or cls.__module__.partition(".")[0] in ("attnkit", "torch", "__main__"):
                continue
            names = [(r.name_of(cls, path), r.plugins) for r in FAMILIES]
            if cls.__module__ not in known and any(name != path and name not in plugins for name, plugins in names):
                needed.append(cls.__module__)
    return list(dict.fromkeys([*module_names(recipe.get(IMPORTS)), *needed]))


def _dotted(value: Any) -> Iterator[str]:
    """Yield the strings with a point in plain data."""
    if isinstance(value, str) and "." in value:
        yield str(value)
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _dotted(item)


def _has_dataloaders(name: str) -> bool:
    """Return whether a task is a user's own class with its own dataloaders."""
    return getattr(tasks.get(name), "train_dataloader", DataHooks.train_dataloader) is not DataHooks.train_dataloader


def outline(spec: ResolvedSpec, *, role: str, indent: int = 0, unread: Mapping[str, str] | None = None) -> list[str]:
    """Return one line per component of a spec, including those in lists: role, name and non-default plain arguments.

    An argument without effect is shown with the reason; `unread` holds the reasons that outer components give.

    Example:
        >>> from attnkit.registry import norms
        >>> outline(norms.resolve({"name": "rms_norm", "eps": 1e-5}), role="norm")
        ['norm: rms_norm (eps=1e-05)']
        >>> from attnkit.registry import stacks
        >>> outline(stacks.resolve({"name": "decoder", "d_model": 8, "num_layers": 1, "mixer": "rwkv", "num_heads": 2}), role="stack")[0]
        'stack: decoder (d_model=8, num_heads=2, which has no effect: no mixer of this stack reads it (mixers: rwkv), num_layers=1)'
    """
    declared = [a for a in spec.registry.arguments(spec.name) if a.name in spec]
    plain = [a for a in declared if a.registry is None and not _specs_in(spec[a.name])]
    chosen = {a.name: spec[a.name] for a in plain if (spec[a.name] is not None if a.registries else spec[a.name] != a.written_default())}
    unread = {**spec.unread, **(unread or {})}
    arguments = ", ".join(f"{k}={v}" + (f", which has no effect: {unread[k]}" if k in unread else "") for k, v in chosen.items())
    lines = [f"{'  ' * indent}{role}: {spec.name}" + (f" ({arguments})" if arguments else "")]
    for argument in declared:
        value = spec[argument.name]
        if isinstance(value, ResolvedSpec):
            inner = {k.removeprefix(f"{argument.name}."): why for k, why in unread.items() if k.startswith(f"{argument.name}.")}
            lines += outline(value, role=argument.name, indent=indent + 1, unread=inner)
        for i, nested in enumerate(_specs_in(value)):
            lines += outline(nested, role=f"{argument.name}.{i}", indent=indent + 1)
    return lines


def without_effect(spec: ResolvedSpec, *, path: str) -> list[str]:
    """Return a sentence for each argument that is set but has no effect, at any depth of a spec.

    Example:
        >>> from attnkit.registry import stacks
        >>> spec = stacks.resolve({"name": "decoder", "d_model": 8, "num_layers": 1, "mixer": "rwkv", "num_heads": 2})
        >>> without_effect(spec, path="model.stack")
        ['model.stack.num_heads has no effect: no mixer of this stack reads it (mixers: rwkv)']
    """
    found = [f"{path}.{argument} has no effect: {reason}" for argument, reason in spec.unread.items()]
    for argument, value in spec.items():
        if isinstance(value, ResolvedSpec):
            found += without_effect(value, path=f"{path}.{argument}")
    return found


def _specs_in(value: Any) -> list[ResolvedSpec]:
    """Return `value` if it is a non-empty list of specs, else an empty list."""
    return value if isinstance(value, list) and value and all(isinstance(item, ResolvedSpec) for item in value) else []
