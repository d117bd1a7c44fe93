"""From a merged recipe to the resolved specs of its model and data."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.core.hooks import DataHooks

from attnkit.registry import ConfigurationError, ResolvedSpec, datasets, tasks


def complete_recipe(recipe: Mapping[str, Any]) -> dict[str, ResolvedSpec]:
    """Return the resolved specs of `model` and `data`; without the latter for a user's own class that has dataloaders itself.

    Raises:
        ConfigurationError: One of them is missing or wrong; the message names the place, as in `model.stack.attention`.
    """
    specs: dict[str, ResolvedSpec] = {}
    for key, registry, example in (("model", tasks, "seq2seq"), ("data", datasets, "text_pairs")):
        if recipe.get(key) is not None:
            specs[key] = registry.resolve(recipe[key], path=key)
        elif key == "model" or not _has_dataloaders(specs["model"]):
            raise ConfigurationError(
                f"no {key} is given; add --config RECIPE (as in --config g2p/transformer) or --{key} {example}. "
                f"Names: {', '.join(registry.names()) or 'none'}."
            )
    if taken := [key for key in tasks.from_data(specs["model"].name) if key in specs["model"]]:
        name = specs["model"].name
        raise ConfigurationError(f"model: task {name!r} takes {taken[0]!r} from the data module; leave it out")
    return specs


def _has_dataloaders(model: ResolvedSpec) -> bool:
    return "." in model.name and tasks.get(model.name).train_dataloader is not DataHooks.train_dataloader


def outline(spec: ResolvedSpec, *, role: str, indent: int = 0) -> list[str]:
    """Return one line for each component of a spec: its role, its name and the plain arguments that are not at their default.

    Example:
        >>> from attnkit.registry import norms
        >>> outline(norms.resolve({"name": "rms_norm", "eps": 1e-5}), role="norm")
        ['norm: rms_norm (eps=1e-05)']
    """
    declared = [a for a in spec.registry.arguments(spec.name) if a.name in spec]
    chosen = {a.name: spec[a.name] for a in declared if a.registry is None and (a.registries or spec[a.name] != a.written_default())}
    arguments = ", ".join(f"{k}={v}" for k, v in chosen.items())
    lines = [f"{'  ' * indent}{role}: {spec.name}" + (f" ({arguments})" if arguments else "")]
    for argument in declared:
        if isinstance(nested := spec[argument.name], ResolvedSpec):
            lines += outline(nested, role=argument.name, indent=indent + 1)
    return lines
