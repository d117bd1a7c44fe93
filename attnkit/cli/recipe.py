"""The arguments of `attnkit fit` and its siblings, taken apart: recipes, flags as a layer of a recipe, and the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from attnkit.recipe import SEED, SPEC_KEYS, find_recipe, merge, plain, read_layers, read_recipe, read_yaml, recipe_folder, recipe_names
from attnkit.registry import IMPORTS, ConfigurationError, Word, module_names, registered_name

__all__ = [
    "SEED",
    "Request",
    "find_recipe",
    "merge",
    "plain",
    "read_layers",
    "read_recipe",
    "read_yaml",
    "recipe_folder",
    "recipe_names",
    "take_apart",
]


@dataclass
class Request:
    """The arguments of `attnkit fit` and its siblings, taken apart."""

    given: list[str] = field(default_factory=list)
    """All of them, as they were given."""
    recipes: list[str] = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=dict)
    """What `--model...`, `--data...` and `--imports` ask for, as a layer."""
    others: list[str] = field(default_factory=list)
    """Everything else, for Lightning's parser."""
    ckpt_path: str | None = None
    resume: bool = False
    trust: bool = False
    """Whether all of the trainer section in a checkpoint is used."""
    out: str | None = None
    print_config: bool = False
    help_of: str | None = None
    """The slot, such as `model.stack.attention`, for which `--model.stack.attention.help [NAME]` asks."""
    help_name: str | None = None

    def layers(self) -> list[dict[str, Any]]:
        """Return the layers of all recipes, after importing the modules that they and the flags name."""
        return read_layers(self.recipes, imports=self.flags.get(IMPORTS, ()))


def take_apart(arguments: Sequence[str]) -> Request:
    """Sort the arguments of a command into recipes, specs and the rest.

    Raises:
        ConfigurationError: A flag without its value.

    Example:
        >>> take_apart(["--config", "g2p/transformer", "--model.stack.attention", "additive", "--trainer.max_epochs=3"]).flags
        {'model': {'stack': {'attention': 'additive'}}}
    """
    request = Request(given=list(arguments))
    settings: list[tuple[list[str], Any]] = []
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        key = flag.lstrip("-")
        family = key.partition(".")[0]
        is_spec = flag.startswith("--") and family in SPEC_KEYS
        if key == "print_config" and flag.startswith("--"):
            request.print_config = True
        elif flag == "--resume" and not equals:
            request.resume = True
        elif flag == "--trust" and not equals:
            request.trust = True
        elif is_spec and key.endswith(".help"):
            request.help_of = key.removesuffix(".help")
            request.help_name = value or (rest.pop(0) if rest and not rest[0].startswith("-") else None)
        elif is_spec or flag in ("--config", "-c", "--ckpt_path", "--out", f"--{IMPORTS}"):
            if not equals:
                if not rest or rest[0].startswith("--"):
                    example = "MODULE" if key == IMPORTS else "VALUE" if is_spec else "PATH"
                    raise ConfigurationError(f"{flag} needs a value, as in {flag} {example}")
                value = rest.pop(0)
            if is_spec:
                settings.append(([part for part in key.split(".") if part != "init_args"], _value(value)))
            elif flag == "--ckpt_path":
                request.ckpt_path = None if value == "null" else value
            elif flag == "--out":
                request.out = value
            elif key == IMPORTS:
                named = _value(value)
                request.flags[IMPORTS] = module_names([*request.flags.get(IMPORTS, ()), *(named if isinstance(named, list) else [value])])
            else:
                request.recipes.append(value)
        else:
            request.others.append(f"{flag}{equals}{value}")
    for path, setting in sorted(settings, key=lambda item: len(item[0])):  # names before the arguments of what they name
        layer = setting
        for part in reversed(path):
            layer = {"name": registered_name(str(layer))} if part == "class_path" else {part: layer}
        request.flags = merge(request.flags, layer, dropped=[])
    return request


def _value(text: str) -> Any:
    """Return a value of the command line: mappings and lists as YAML reads them, anything else as a `Word`."""
    value = read_yaml(text, where="the command line")
    return plain(value) if text.lstrip()[:1] in ("{", "[") and isinstance(value, dict | list) else Word(text, value)
