"""The output of `--help`, `--trainer.help` and `--model.SLOT.help` for `attnkit fit` and its siblings.

(jsonargparse's help has no components, equations or papers, and takes seconds, since it imports Lightning.)
"""

import inspect
from collections.abc import Mapping
from typing import Any

from attnkit.cli.components import describe, list_components
from attnkit.recipe import SEED, merged, recipe_names
from attnkit.registry import FAMILIES, ConfigurationError, datasets, nearest, probes, tasks
from attnkit.registry.base import Fields
from attnkit.registry.docstrings import argument_docs
from attnkit.train.request import Request


def overview(command: str, *, program: str = "attnkit") -> str:
    """Return the output of `PROGRAM COMMAND --help`."""
    families = [registry for registry in FAMILIES if registry.names() and registry is not probes]  # `attnkit probe` lists those
    names = "\n".join(f"  {registry.family:<14} {', '.join(registry.names())}" for registry in families)
    own = {
        "fit": "\n  --resume                continue the newest run of this recipe, if there is one"
        "\n  --trust                 use the whole trainer section of a checkpoint: its callbacks can be any code, its paths any folder",
        "predict": "\n  --out FILE              write the predictions to this file, which is created only when complete",
    }.get(command, "")
    needed = "--config RECIPE" if command == "fit" else "--ckpt_path PATH"
    return f"""usage: {program} {command} {needed} [--KEY VALUE]...

  --config RECIPE         a YAML file, or a recipe by its short name: {", ".join(recipe_names()) or "none"}
                          (several are merged, later ones win)
  --ckpt_path PATH        {"resume from" if command == "fit" else "use"} this checkpoint, which contains its recipe{own}
  --imports MODULE        import this module first; it registers components, or defines the classes that class paths name
  --model NAME            the task, and --data NAME its data
  --model.ARGUMENT VALUE  any argument, at any depth, as in
                          --model.stack.attention additive --model.stack.attention.hidden_dim 32
  --model.SLOT.help NAME  describe a component, as in --model.stack.attention.help additive
  --data.ARGUMENT VALUE   the same for the data
  --trainer.KEY VALUE     Lightning's Trainer; --trainer.help lists its keys
  --seed_everything N     the seed of all random numbers (default: {SEED})
  --print_config          print the whole recipe, defaults included, and stop

Names (see attnkit list):
{names}"""


def trainer_overview() -> str:
    """Return the output of `--trainer.help`: the keys of Lightning's Trainer."""
    from lightning.pytorch import Trainer

    parameters = inspect.signature(Trainer).parameters.values()
    meanings = argument_docs(inspect.getdoc(Trainer.__init__) or "")
    defaults = {p.name: "null" if p.default is None else p.default for p in parameters if p.name != "self"}
    return "\n".join(f"  --trainer.{name} (default: {value})\n      {meanings.get(name, '')}" for name, value in defaults.items())


def describe_slot(request: Request) -> str:
    """Answer `--model.stack.attention.help [NAME]`: follow the slots of the recipe's components from the top."""
    key, *path = str(request.help_of).split(".")
    recipe = merged([*request.layers(), request.flags])
    registry, spec = (tasks if key == "model" else datasets), recipe.get(key)
    for part in path:
        named = _name_in(spec)
        slots = {a.name: a for name in ([named] if named else registry) for a in registry.arguments(name) if a.registry is not None}
        if part not in slots:
            raise ConfigurationError(
                f"{registry.family} {named or 'components'} have no slot {part!r}.{nearest(part, slots)} Slots: {', '.join(slots)}."
            )
        default = slots[part].default
        spec = spec.get(part, default) if isinstance(spec, Mapping) else default
        registry = slots[part].registry or registry
    wanted = request.help_name or (registry.path if isinstance(registry, Fields) else _name_in(spec))
    return describe(registry, wanted) if wanted else list_components(registry.family)


def _name_in(spec: Any) -> str | None:
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    return str(name) if isinstance(name, str) else None
