"""Resolves a request: merges its layers over a checkpoint's recipe, then resolves the specs once."""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from attnkit.checkpoint import describe_exported, is_exported, load_checkpoint, require_rebuildable
from attnkit.checkpoint.description import is_of_own_class
from attnkit.checkpoint.outdated import without_outdated_data
from attnkit.recipe import merge, merged, read_yaml
from attnkit.registry import IMPORTS, ConfigurationError, Registry, ResolvedSpec, Word, datasets, module_names, plain_data, tasks
from attnkit.train.composition import complete_recipe, imports_of
from attnkit.train.inheritance import (
    INHERITED,
    INHERITED_BY_THE_TASK,
    inherited_data,
    inherited_layer,
    kept_values,
    read_init_from,
    without_replaced,
)
from attnkit.train.origins import Origins, keys_in
from attnkit.train.output import say
from attnkit.train.request import Request
from attnkit.train.runs import find_run, index_of
from attnkit.train.saved_recipe import recipe_in
from attnkit.train.trust import import_classes, require_imported, trusted_part


@dataclass
class Resolution:
    """A request with every name looked up."""

    specs: dict[str, ResolvedSpec]  # the specs of `model`, and of `data` unless the model has its own dataloaders
    others: dict[str, Any]  # other sections of the recipe, for Lightning's parser
    imports: list[str]
    named: dict[str, Any]  # what recipe files and flags name, without the checkpoint's recipe
    ckpt_path: str | None = None
    checkpoint: dict[str, Any] | None = None  # the description of the checkpoint
    origins: Origins | None = None  # for a fit that continues with its own recipe files: what the new recipe is compared to
    resumed: Path | None = None  # folder of the run to resume, if attnkit's own loggers made it
    resumed_in: Path | None = None  # folder of the checkpoint that `--resume` found
    index: Path | None = None  # lists the folders of a run with the user's own loggers, for `--resume`
    kept: dict[str, Any] = field(default_factory=dict)  # data arguments from a checkpoint, such as trained tokenizers


def resolve_request(
    command: str,
    request: Request,
    claims: ExitStack,
    *,
    model_class: type[LightningModule] | None = None,
    datamodule_class: type[LightningDataModule] | None = None,
    program: Sequence[str] = ("attnkit",),
) -> Resolution:
    """Resolve a request; sections `model` and `data` without a name use the given classes.

    `claims` hold the folder of a resumed run. Raises if a recipe, a checkpoint or an argument is wrong.
    """
    if request.out is not None and command != "predict":
        raise ConfigurationError(f"--out is only for `predict`: `{command}` writes no predictions")
    if request.trust and command != "fit":
        raise ConfigurationError(f"--trust is only for `fit`: `{command}` uses no trainer settings from a checkpoint")
    dropped: list[str] = []
    recipe = merged(request.layers(command), dropped=dropped)
    import_classes(merged([recipe, request.flags]))
    ckpt_path, resumed = request.ckpt_path or recipe.pop("ckpt_path", None), None
    is_found = request.resume or (command == "fit" and ckpt_path == "last")
    index = index_of(request, recipe) if command == "fit" and request.recipes else None
    if is_found:
        resumed, ckpt_path = find_run(request, command, recipe, ckpt_path, claims)
    checkpoint = _read_checkpoint(command, request, ckpt_path)
    named, saved = merged([recipe, request.flags]), None
    if checkpoint is not None:
        saved = _recipe_in_checkpoint(command, request, checkpoint, str(ckpt_path), recipe, program=program)
        recipe = merge(saved, recipe, dropped=dropped)
    recipe = merge(recipe, request.flags, dropped=dropped)
    classes = (("model", tasks, model_class), ("data", datasets, datamodule_class))
    for key, registry, cls in classes:
        if cls is not None:
            recipe[key] = _spec_of_class(recipe.get(key), registry, cls, key)
    origins = None
    if command == "fit" and checkpoint is not None and saved is not None and request.recipes:
        saved = saved | {"trainer": recipe_in(checkpoint, command).get("trainer")}
        own = {key: _spec_of_class(named.get(key), registry, cls, key) for key, registry, cls in classes if cls is not None}
        origins = _origins(request, saved, named | own)
    model, kept = recipe.get("model"), dict[str, Any]()
    if checkpoint is None and isinstance(model, Mapping) and (start := read_init_from(model.get("init_from"))) is not None:
        recipe = merge(inherited_layer(start, model.get("name")), recipe, dropped=dropped)
        specs = complete_recipe(recipe)
        kept = inherited_data(start, specs["data"].name)
        dropped += [f"data.{name} comes from {model['init_from']}" for name in kept]
    else:
        specs = complete_recipe(recipe)
        if checkpoint is not None and "data" in specs:
            kept = kept_values(checkpoint, specs["model"].name, specs["data"].name)
    if command == "fit" and saved is not None:
        seeds = [read_yaml(value, where=key) for key, value in request.other_flags() if key == "--seed_everything"]
        _require_same_start(named | ({"seed_everything": seeds[-1]} if seeds else {}), saved, str(ckpt_path))
    if kept:
        specs["data"] = without_replaced(specs["data"], kept, named.get("data"), str(ckpt_path or specs["model"]["init_from"]))
    for note in dropped:
        say(f"note: {note}")
    return Resolution(
        specs=specs,
        others={key: plain_data(value, path=key) for key, value in recipe.items() if key not in ("model", "data", IMPORTS)},
        imports=imports_of(recipe, known=[cls.__module__ for _, _, cls in classes if cls is not None]),
        named=named,
        ckpt_path=ckpt_path,
        checkpoint=checkpoint,
        resumed=resumed,
        origins=origins,
        resumed_in=Path(ckpt_path).parent if is_found and ckpt_path is not None else None,
        index=index,
        kept=kept,
    )


def _require_same_start(named: Mapping[str, Any], saved: Mapping[str, Any], path: str) -> None:
    """Raise if files or flags give a continued run a different starting point than its own."""
    model = named.get("model")
    for key, section, original in (
        ("model.init_from", model if isinstance(model, Mapping) else {}, saved["model"]),
        ("seed_everything", named, saved),
    ):
        name = key.rpartition(".")[2]
        given = section.get(name, original.get(name))
        given = given.value if isinstance(given, Word) else given
        if name in original and given is not True and given != original[name]:  # true: the seed that was drawn
            raise ConfigurationError(
                f"{key}: the run in {path} started with {_shown(original[name])} and continues from its checkpoint, so it would ignore "
                f"{_shown(given)}. Set it to {_shown(original[name])}, or start a new run"
            )


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _origins(request: Request, saved: Mapping[str, Any], alone: dict[str, Any]) -> Origins:
    """Return the checkpoint's recipe and that of files and flags `alone`, with defaults; the latter may be incomplete or invalid."""
    fresh: dict[str, Any] = {}
    model = alone.get("model")
    if isinstance(model, Mapping) and model.get("init_from") is not None:
        names = (*INHERITED, *INHERITED_BY_THE_TASK)
        alone = merge({"model": {key: saved["model"][key] for key in names if key in saved["model"]}}, alone, dropped=[])
    with suppress(ConfigurationError):
        fresh = {key: spec.plain() for key, spec in complete_recipe(alone).items()}
    in_files = alone.get("trainer") or {}
    fresh["trainer"] = {key: argument.default for key, argument in signature(Trainer).parameters.items() if key not in in_files}
    return Origins(saved, fresh, {*keys_in(request.flags), *(f"trainer.{key}" for key in _trainer_flags(request))})


def _spec_of_class(spec: Any, registry: Registry, cls: type, key: str) -> Any:
    """Return the given spec, with `cls` as the default name; raise if it names a class that is not a subclass."""
    path = f"{cls.__module__}.{cls.__qualname__}"
    if spec is None:
        return {"name": path}
    if isinstance(spec, Mapping) and "name" not in spec:
        return {"name": path, **spec}
    name, _ = registry.split(spec)
    if not issubclass(registry.get(name), cls):
        raise ConfigurationError(f"{key} must be {cls.__qualname__} or a subclass of it, which {name!r} is not")
    return spec


def _recipe_in_checkpoint(
    command: str, request: Request, checkpoint: dict[str, Any], path: str, recipe: Mapping[str, Any], *, program: Sequence[str]
) -> dict[str, Any]:
    """Return the checkpoint's recipe, with only the harmless part of its trainer section unless `--trust` is given."""
    saved = recipe_in(checkpoint, command)
    if not request.trust:
        listed = module_names(saved.pop(IMPORTS, None))
        if known := [module for module in listed if module in sys.modules]:
            saved[IMPORTS] = known
        if skipped := [module for module in listed if module not in known]:
            needed = " ".join(f"--{IMPORTS} {module}" for module in skipped)
            trust = ", or --trust" if command == "fit" else ""
            modules = ", ".join(skipped)
            say(f"note: did not import modules that the checkpoint's recipe lists: {modules}; if you trust them, add {needed}{trust}")
        require_imported(saved, path)
    data = merged([recipe, request.flags]).get("data")
    saved, note = without_outdated_data(saved, checkpoint, path, given=data, command=[*program, command, *request.given])
    if note is not None:
        say(f"note: {note}")
    if "trainer" in saved and not request.trust:
        given = {*(recipe.get("trainer") or {}), *_trainer_flags(request)}
        saved["trainer"], skipped = trusted_part(saved["trainer"], given=given)
        if skipped:
            say(f"note: not used from the checkpoint's recipe: {', '.join(skipped)}; add --trust to use it, or give it on the command line")
    return saved


def _trainer_flags(request: Request) -> set[str]:
    """Return the names of the trainer settings on the command line."""
    flags = (re.match(r"--trainer\.(\w+)", key) for key, _ in request.other_flags())
    return {flag[1] for flag in flags if flag}


def _read_checkpoint(command: str, request: Request, path: str | None) -> dict[str, Any] | None:
    if path == "hpc" and command == "fit":
        return None  # Lightning finds it
    if path is not None and command != "fit" and is_exported(path):
        return describe_exported(path)
    if path in ("best", "last", "hpc") and not Path(path).exists():
        raise ConfigurationError(f"`{command}` needs the path of a checkpoint, which `fit` prints: --ckpt_path FOLDER/{path}.ckpt")
    if path is not None:
        checkpoint = load_checkpoint(path, parts="description", trust=request.trust)
        if not is_of_own_class(checkpoint):
            require_rebuildable(checkpoint, path)
        return checkpoint
    if command != "fit":
        raise ConfigurationError(f"`{command}` needs a trained model: add --ckpt_path PATH")
    return None
