"""Saves a run's recipe in its folder and in each checkpoint."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from typing_extensions import override

from attnkit import __version__
from attnkit.callback.last_checkpoint import checkpoint_folder
from attnkit.checkpoint.description import ARGUMENTS, RECIPE_STATE, arguments_of, describe, saved_recipe
from attnkit.lightning_internals import tuned_values
from attnkit.recipe import SPEC_KEYS
from attnkit.registry import IMPORTS, ConfigurationError, import_modules, plain_data, tasks
from attnkit.task import Task

_OF_RUN = ("data", "seed_everything", "trainer")  # sections of a recipe that a task's description lacks


class RecipeCallback(Callback):
    """Writes the recipe to the run's folder as `config.yaml` and into each checkpoint (except the task, which is already there).

    Prints the number of parameters of each part of the model, instead of Lightning's summary (whose FLOPs are 0 on a CPU).
    """

    state_key = RECIPE_STATE

    def __init__(self, name: str, recipe: Mapping[str, Any]) -> None:
        self.name = name
        self.recipe = recipe

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        folder = trainer.log_dir  # every rank reads it, since it is broadcast
        if trainer.loggers and not isinstance(trainer.loggers[0], CSVLogger | TensorBoardLogger):
            folder = str(checkpoint_folder(trainer).parent)  # all runs of other loggers have the same `log_dir`, or none
        writes_nothing = self.recipe["trainer"]["fast_dev_run"] or trainer.barebones
        if trainer.is_global_zero and folder is not None and not writes_nothing:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / "config.yaml").write_text(as_yaml(self.recipe), encoding="utf-8")

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            print(parameter_line(pl_module))

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the recipe again if Lightning's tuners have changed values of it."""
        if tuned := tuned_values(trainer, pl_module):
            own = {key: {name: tuned.get(name, value) for name, value in self.recipe.get(key, {}).items()} for key in SPEC_KEYS}
            self.recipe = {**self.recipe, **{key: spec for key, spec in own.items() if spec}}
            self._write(trainer)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name} | {key: self.recipe[key] for key in (IMPORTS, *_OF_RUN) if key in self.recipe}

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if not isinstance(pl_module, Task):  # a Task writes its own description
            model = dict(self.recipe["model"])
            checkpoint["attnkit"] = describe(model.pop("name"), model) | {"arguments": model}
            if ARGUMENTS in checkpoint:
                checkpoint[ARGUMENTS] = _data_only(checkpoint[ARGUMENTS], self.recipe["model"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Import the recipe's modules: a spawned process has imported only the modules of the classes it received."""
        vars(self).update(state)
        import_modules(self.recipe.get(IMPORTS, ()))


def _data_only(saved: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters as plain data: `save_hyperparameters` keeps objects, which a data-only checkpoint cannot hold.

    An object that the `model` spec describes becomes a plain spec, or is left out if it cannot.
    """
    declared, kept = {a.name: a for a in tasks.arguments(model["name"])}, {}
    for key, value in saved.items():
        if key in declared and key in model and not _is_data(value):
            try:
                value = plain_data(declared[key].resolve(value), path=key)
            except ConfigurationError:
                if isinstance(model[key], Mapping):
                    continue
        kept[key] = value
    return kept


def _is_data(value: Any) -> bool:
    """Return whether a value consists of mappings, lists, tuples, strings, numbers, booleans and None; subclasses do not count."""
    if isinstance(value, Mapping):
        return all(map(_is_data, value.values()))
    return all(map(_is_data, value)) if type(value) in (list, tuple) else type(value) in (type(None), bool, int, float, str)


def parameter_line(task: LightningModule) -> str:
    """Return the parameter counts of a task and its parts; shared parameters count once, for the first part that has them.

    Example:
        >>> from torch import nn
        >>> task = LightningModule()
        >>> task.model = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 2, bias=False))
        >>> parameter_line(task)
        'parameters: 1,320 (0: 1,240, 2: 80), all trained'
    """
    parts: dict[str, int] = {}
    for name, parameter in task.named_parameters():
        part = name.removeprefix("model.").partition(".")[0]
        parts[part] = parts.get(part, 0) + parameter.numel()
    frozen = sum(p.numel() for p in task.parameters() if not p.requires_grad)
    listed = ", ".join(f"{part}: {count:,}" for part, count in parts.items())
    return f"parameters: {sum(parts.values()):,} ({listed}), {f'{frozen:,} frozen' if frozen else 'all trained'}"


def as_yaml(recipe: Mapping[str, Any]) -> str:
    """Format a recipe as YAML, with the versions of attnkit and Lightning in a comment."""
    text = yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True, width=140)
    return f"# attnkit {__version__}, lightning {version('lightning')}\n{text}"


def recipe_in(checkpoint: dict[str, Any], command: str) -> dict[str, Any]:
    """Return a checkpoint's recipe, with seed and trainer settings only for `fit`; the latter are untrusted, see `trusted_part`."""
    name, arguments = checkpoint["attnkit"]["task"], arguments_of(checkpoint)
    from_data = tasks.from_data(name)
    model = {key: value for key, value in arguments.items() if key not in from_data}
    state = saved_recipe(checkpoint)
    kept = (IMPORTS, *_OF_RUN) if command == "fit" else (IMPORTS, "data")
    return {"model": {"name": name, **model}} | {key: state[key] for key in kept if key in state}
