"""Arguments that a task takes from the data module, and those that `model.init_from` takes from a checkpoint."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from lightning.pytorch import LightningDataModule

from attnkit.checkpoint import CheckpointError, load_start
from attnkit.recipe import recipe_names
from attnkit.registry import ConfigurationError, ResolvedSpec, datasets, tasks, tokenizers
from attnkit.task import Task
from attnkit.train.composition import complete_recipe

SHOWN = 8  # maximum number of classes in a message
INHERITED = ("stack", "embedding")  # arguments of a task that `init_from` provides unless the recipe sets them
INHERITED_BY_THE_TASK = ("tie", "head")  # further ones, if the checkpoint has the same task


def task_and_data(recipe: Mapping[str, Any], *, needed_by: str) -> tuple[ResolvedSpec, LightningDataModule]:
    """Return the spec of a recipe's task, with its arguments from the data module, and the data module."""
    specs = complete_recipe(recipe)
    name = specs["model"].name
    if "data" not in specs or not issubclass(tasks.get(name), Task):
        raise ConfigurationError(f"{needed_by} needs an attnkit task with a data module, which {name} is not")
    data: LightningDataModule = datasets.build(specs["data"])
    return specs["model"].replace(**values_from_data(name, specs["data"].name, data)), data


def values_from_data(task: str, dataset: str, module: object) -> dict[str, Any]:
    """Return the task's arguments that come from the data module; if it lacks one, raise an error that lists suitable data modules."""
    wanted = tasks.from_data(task)
    available = {*dir(type(module)), *vars(module)}  # does not evaluate properties
    if missing := [attribute for attribute in wanted.values() if attribute not in available]:
        suitable = [name for name, cls in datasets.classes().items() if all(hasattr(cls, attribute) for attribute in wanted.values())]
        raise ConfigurationError(
            f"the task {task!r} needs data with {' and '.join(missing)}, which {dataset!r} does not provide. "
            f"Data modules that do: {', '.join(suitable) or 'none'}."
        )
    return {argument: getattr(module, attribute) for argument, attribute in wanted.items()}


def linked_values(model: ResolvedSpec, data: ResolvedSpec | None, module: object) -> dict[str, Any]:
    """Return the task's arguments that come from the data module; raise if it lacks one that the task declares (`from_data`).

    For a class that declares none, these are the required arguments that the recipe does not set and that are attributes of the data
    module.
    """
    if tasks.from_data(model.name):
        if data is None:
            raise ConfigurationError(f"the task {model.name!r} needs data: add --data NAME")
        return values_from_data(model.name, data.name, module)
    needed = (a.name for a in tasks.arguments(model.name) if a.required and a.name not in model)
    return {name: getattr(module, name) for name in needed if hasattr(module, name)}


def read_init_from(path: object) -> dict[str, Any] | None:
    """Return the checkpoint that `model.init_from` names, or None if it is null; an unusable one raises an error that says what to do."""
    if path is None or str(path) == "null":
        return None
    try:
        return load_start(str(path), parts="description")
    except CheckpointError as error:
        parts = re.match(r"(?:.*/)?runs/(.+)/version_\d+/checkpoints/", str(path))
        recipe = parts[1] if parts and parts[1] in recipe_names() else None
        files = "a checkpoint of attnkit fit, a file of attnkit import or export"
        hint = f"Train it with: attnkit fit --config {recipe}" if recipe else f"Set it to {files}, or to null to train from scratch"
        reason = str(error)
        raise CheckpointError(f"model.init_from: {reason}{'' if reason.endswith(('.', '?')) else '.'} {hint}") from error


def inherited_layer(checkpoint: Mapping[str, Any], task: object) -> dict[str, Any]:
    """Return the base layer of a recipe for `task`: the checkpoint's stack and embedding, and its head if the task is the same."""
    arguments = checkpoint["hyper_parameters"]
    names = INHERITED + (INHERITED_BY_THE_TASK if task == checkpoint["attnkit"]["task"] else ())
    return {"model": {key: arguments[key] for key in names if key in arguments}}


def inherited_data(checkpoint: Mapping[str, Any], dataset: str) -> dict[str, Any]:
    """Return the arguments of a data module that `init_from` provides: tokenizers, and how many separators the model reads in a pair."""
    declared = datasets.arguments(dataset)
    found = _saved(checkpoint, [argument.name for argument in declared if argument.registry is tokenizers])
    if "separators" in (argument.name for argument in declared) and "tokenizer" in found:
        from attnkit.convert.masked import masked_vocabulary_of  # only for questions: it takes a tenth of a second

        published = masked_vocabulary_of(found["tokenizer"])
        separators = checkpoint["hyper_parameters"].get("separators") or (published.separators if published else None)
        found |= {} if separators is None else {"separators": separators}
    return found


def kept_values(checkpoint: Mapping[str, Any], task: str, dataset: str) -> dict[str, Any]:
    """Return the data module's arguments on which the checkpoint's weights depend: tokenizers, classes, a shape."""
    return _saved(checkpoint, [a.name for a in datasets.arguments(dataset) if a.name in tasks.from_data(task)])


def _saved(checkpoint: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    saved = checkpoint.get("hyper_parameters", {})
    return {name: tokenizers.resolve(saved[name]) if name.endswith("tokenizer") else saved[name] for name in names if saved.get(name)}


def without_replaced(data: ResolvedSpec, kept: Mapping[str, Any], named: Any, path: str) -> ResolvedSpec:
    """Return the data spec without the arguments that the checkpoint's `kept` values replace; raise if files or flags set one (`named`)."""
    named = named if isinstance(named, Mapping) else {}
    replaced = [name for name in kept if not _agrees(data.get(name), kept, name, named.get(name))]
    if taken := next((name for name in replaced if name in named), None):
        value = kept[taken]
        values = value if isinstance(value, list) else [value["name"] if isinstance(value, Mapping) else value]
        own = ", ".join([*map(str, values[:SHOWN]), *["..."] * (len(values) > SHOWN)])
        raise ConfigurationError(
            f"data.{taken}: the weights in {path} belong to its own {taken.replace('_', ' ')} ({own}), so the run would ignore this "
            f"setting. Remove it, or train a new model"
        )
    return ResolvedSpec(data.registry, data.name, {name: value for name, value in data.arguments.items() if name not in replaced})


def _agrees(wanted: Any, kept: Mapping[str, Any], name: str, named: Any) -> bool:
    """Return whether a setting agrees with the checkpoint's value, in the keys that files or flags set (`named`), if any."""
    if not isinstance(wanted, Mapping):
        is_shared = kept[name] == kept.get("src_tokenizer")
        return wanted == kept[name] or (wanted is None and (is_shared or not isinstance(kept[name], Mapping)))
    keys = ("name", *named) if isinstance(named, Mapping) else wanted if named is None else ("name",)
    return all(wanted.get(key) in (None, kept[name].get(key)) for key in keys)
